"""A run as people see it.

follower     keeps a `RunView` current from what the bus says
history      what became of a run so far, from its metrics
jsonl_lines  what one line of metrics.jsonl, events.jsonl and episodes.jsonl looks like
live         the live view
live_rich    the live view in a terminal
live_text    the live view's lines where there is no terminal
prometheus   a run as Prometheus reads it
run_view     everything known about a run, and what follows from it
status       what `astraflow status` reads
status_text  a run's status as a page of text, without colours
transcripts  which episodes somebody wants to read
transcript_html  episodes as one HTML file
transcript_text  episodes in a terminal
wording      numbers as people read them
"""
