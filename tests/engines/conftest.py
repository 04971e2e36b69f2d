"""One torch thread in the test process: two would spin against whatever else runs on the machine."""

import torch

torch.set_num_threads(1)
