"""Talks to a server with the package `openai`: openai_client.py URL NAME."""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel


class Mood(BaseModel):
    """Answer that a random model ends in time."""

    word: Literal["good", "bad"]


class Go(BaseModel):
    """Arguments of a tool."""

    to: Literal["Lima", "Rome"]


def constrained(client, talk):
    """Structured answers and forced calls, with the helpers of the package."""
    talk = talk | {"max_completion_tokens": 110}
    parsed = client.chat.completions.parse(**talk, response_format=Mood)
    assert isinstance(parsed.choices[0].message.parsed, Mood), parsed
    with client.chat.completions.stream(**talk, response_format=Mood) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == parsed.choices[0].message.parsed
    assert sum(event.type == "content.delta" for event in events) > 5
    free = client.chat.completions.create(**talk, response_format={"type": "json_object"}, temperature=0)
    assert free.choices[0].finish_reason == "length" or isinstance(json.loads(free.choices[0].message.content), dict)
    for rule, texts in [({"choice": ["yes", "no"]}, {"yes", "no"}), ({"regex": "[ab]c"}, {"ac", "bc"})]:
        found = client.chat.completions.create(**talk, extra_body={"structured_outputs": rule})
        assert found.choices[0].message.content in texts, found
    tools = [openai.pydantic_function_tool(Go, name="go"), {"type": "function", "function": {"name": "now"}}]
    forced = talk | {"tools": tools[:1], "tool_choice": "required", "parallel_tool_calls": False}
    # A random model may reason until the end of its tokens.
    for seed in range(3, 40):
        forced["seed"] = seed
        try:
            parsed = client.chat.completions.parse(**forced)
            break
        except openai.LengthFinishReasonError:
            pass
    (call,) = parsed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Go) and parsed.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(**forced) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    (same,) = final.choices[0].message.tool_calls
    assert same.function.parsed_arguments == call.function.parsed_arguments, final
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(piece.arguments_delta for piece in pieces) == same.function.arguments and len(pieces) > 3
    assert sum(event.type == "tool_calls.function.arguments.done" for event in events) == 1
    named = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "now"}}}
    chunks = list(client.chat.completions.create(**(talk | named | {"seed": forced["seed"]}), stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].function.name == "now" and calls[0].id and calls[0].index == 0
    assert json.loads("".join(call.function.arguments or "" for call in calls)) == {}
    try:
        client.chat.completions.create(**talk, extra_body={"structured_outputs": {"json": {"$ref": "http://x"}}})
        raise SystemExit("a foreign reference was not refused")
    except openai.BadRequestError as refused:
        print(f"refused: {refused.message}")


def main(url, name):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [name]
    assert client.models.retrieve(name).id == name
    asked = dict(model=name, prompt="The cat", max_tokens=12, temperature=0.8, seed=5, logprobs=2)
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].text, (text, whole.choices[0].text)
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    tokens = [token for chunk in chunks if chunk.choices for token in chunk.choices[0].logprobs.tokens]
    assert tokens == whole.choices[0].logprobs.tokens
    talk = dict(model=name, messages=[{"role": "user", "content": "Hi"}], max_completion_tokens=9, seed=3)
    whole = client.chat.completions.create(**talk, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    assert whole.choices[0].message.role == "assistant" and whole.usage.completion_tokens > 0
    whole = client.chat.completions.create(**talk, logprobs=True, top_logprobs=2)
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**talk, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == (whole.choices[0].message.content or "") and chunks[-1].usage == whole.usage
    constrained(client, dict(model=name, messages=[{"role": "user", "content": "Hi"}], seed=3))
    for change, error in [
        ({"model": "other"}, openai.NotFoundError),
        ({"max_tokens": 10_000_000}, openai.BadRequestError),
        ({"extra_body": {"beams": 3}}, openai.BadRequestError),
    ]:
        try:
            client.completions.create(**(asked | change))
            raise SystemExit(f"{change} was not refused")
        except error as refused:
            print(f"refused: {refused.message}")
    with client.completions.create(**(asked | {"max_tokens": 100}), stream=True) as stream:
        next(iter(stream))
    print("openai: completions, streams, constraints, calls, models and errors are understood")


if __name__ == "__main__":
    main(*sys.argv[1:])
