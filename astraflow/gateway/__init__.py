"""Agents of other people's, over HTTP: an episode is a session, its policies are models of OpenAI's or Anthropic's API.

    client --key--> server --> session --> policies of the episode --> answer in the client's dialect

anthropic_messages  Anthropic's `messages` and `count_tokens`
body                bodies of requests, with limits and types
calls               the calls of a session, and retries of those whose answer was lost
client              sessions for scripts: `af.sessions(...)`
endings             the bodies of `reward`, `end` and `cancel`
environment         an environment that is played through sessions
events              server-sent events
launch              a command that is started for each episode
openai_chat         OpenAI's `chat/completions` and `completions`
openai_responses    OpenAI's `responses`
sampled             what was sampled, found again in what clients send back
server              routes, keys and errors
session             one episode: its calls and how it ends
sessions            the sessions of a process, by key and for who waits
tool_text           tool calls as text
vocabulary          what is asked and answered, whatever the dialect

Importing it needs no aiohttp; `server` and `body` do. It imports no bus and no actor.
"""
