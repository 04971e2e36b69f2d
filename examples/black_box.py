"""An agent that knows nothing of AstraFlow: a task on its standard input, OpenAI's client, its answer printed.

    astraflow up examples/black_box.toml

starts it for each episode, with OPENAI_BASE_URL and OPENAI_API_KEY set; the environment grades what it prints.
"""

import json
import os
import sys

from openai import OpenAI

task = json.load(sys.stdin)
answer = OpenAI().chat.completions.create(model=os.environ["ASTRAFLOW_MODEL"], messages=task["messages"])
sys.stdout.write(answer.choices[0].message.content or "")
