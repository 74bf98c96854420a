"""Talks to a server with the package `openai`: openai_client.py URL NAME."""

import sys

import openai


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
    for change, error in [
        ({"model": "other"}, openai.NotFoundError),
        ({"max_tokens": 100000}, openai.BadRequestError),
        ({"extra_body": {"beams": 3}}, openai.BadRequestError),
    ]:
        try:
            client.completions.create(**(asked | change))
            raise SystemExit(f"{change} was not refused")
        except error as refused:
            print(f"refused: {refused.message}")
    with client.completions.create(**(asked | {"max_tokens": 100}), stream=True) as stream:
        next(iter(stream))
    print("openai: completions, streams, models and errors are understood")


if __name__ == "__main__":
    main(*sys.argv[1:])
