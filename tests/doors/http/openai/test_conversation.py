from __future__ import annotations

import json

import pytest
from openai_parts import FakeTokenizer

from trivium.doors.http.openai.conversation import Conversations
from trivium.errors import RequestError
from trivium.models.chat_template import ChatTemplate

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% endfor %}" + PLAIN
)
TRIMS = PLAIN.replace("m.content }}", "m.content | trim }}")
TOOLS = (
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}{% endfor %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "sum", "description": "adds", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "sum", "arguments": '{"of": [1, 2]}'}}


def conversations(source):
    return Conversations(ChatTemplate(source, FakeTokenizer()))


def user(text):
    return {"role": "user", "content": text}


def test_template_that_knows_tools():
    found = conversations(TOOLS)
    assert found.knows_tools
    assert found.writes_call_tags
    messages = [user("hi"), {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "3"}]
    assert found.render(messages, [TOOL]).text == (
        '(sum)[user]hi[assistant]<tool_call>{"name": "sum", "arguments": {"of": [1, 2]}}[tool]3'
    )
    assert not conversations(TOOLS.replace("<tool_call>", "!")).writes_call_tags


def test_tools_are_described_to_others():
    found = conversations(PLAIN)
    assert not found.knows_tools
    assert found.writes_call_tags
    text = found.render([user("hi")], [TOOL]).text
    assert text.startswith("[system]You can call functions.")
    assert json.dumps(TOOL["function"]) in text
    assert (
        '<tool_call>\n{"name": "name of the function", "arguments": {"name of a parameter": "its value"}}\n</tool_call>' in text
    )
    assert text.endswith("[user]hi[assistant]")
    own = found.render([{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, user("hi")], [TOOL]).text
    assert own.startswith("[system]Be brief.\n\nYou can call functions.")
    assert found.render([user("hi")]).text == "[user]hi[assistant]"


def test_tools_without_a_system_message():
    found = conversations(NO_SYSTEM)
    text = found.render([user("hi"), user("ho")], [TOOL]).text
    assert text.startswith("[user]You can call functions.")
    assert text.endswith("\n\nhi[user]ho[assistant]")
    with pytest.raises(RequestError, match="one of the user"):
        found.render([{"role": "assistant", "content": "x"}], [TOOL])


def test_calls_and_results_as_text():
    messages = [
        user("hi"),
        {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, {"function": {"name": "f", "arguments": "broken{"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "4"}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "5"},
    ]
    given = json.dumps(messages)
    assert conversations(PLAIN).render(messages).text == (
        '[user]hi[assistant]Wait.\n<tool_call>\n{"name": "sum", "arguments": {"of": [1, 2]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": "broken{"}\n</tool_call>'
        "[user]<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>"
        "[assistant][user]<tool_response>\n5\n</tool_response>[assistant]"
    )
    assert json.dumps(messages) == given


def test_developer_is_another_word_for_system():
    messages = [{"role": "developer", "content": "x"}]
    assert conversations(PLAIN).render(messages).text == "[system]x[assistant]"
    assert conversations("{# developer #}" + PLAIN).render(messages).text == "[developer]x[assistant]"


@pytest.mark.parametrize("source", [PLAIN, TRIMS, PLAIN + "<end>"])
def test_the_last_message_goes_on(source):
    found = conversations(source)
    messages = [user("hi"), {"role": "assistant", "content": "end "}]
    rendered = found.render(messages, add_generation_prompt=False, continue_final=True)
    assert rendered.text == "[user]hi[assistant]end "
    for last in (user("hi"), {"role": "assistant", "content": ""}):
        with pytest.raises(RequestError, match="continue_final_message"):
            found.render([user("hi"), last], add_generation_prompt=False, continue_final=True)
    with pytest.raises(RequestError, match="does not let"):
        conversations("{{ messages[0].role }}").render(messages, add_generation_prompt=False, continue_final=True)


def test_variables():
    assert conversations(PLAIN + "{{ mood }}").render([user("hi")], variables={"mood": "!"}).text == "[user]hi[assistant]!"
    with pytest.raises(RequestError, match="chat_template_kwargs must not set messages"):
        conversations(PLAIN).render([user("hi")], variables={"messages": []})
