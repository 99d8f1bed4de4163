"""Where nodes come from, as PyTorch's exporter notes it: told in messages and pictures."""

from __future__ import annotations

import pytest
from onnx import NodeProto, helper

from sublet.integrations.onnx.reader.convert import MAX_CHARACTERS, NAME_SCOPES_KEY, STACK_TRACE_KEY, source_location_of

TRACED = """File "/home/me/net/model.py", line 7, in forward
    x = self.layer(x)
  File "/home/me/net/block.py", line 12, in forward
    return torch.relu(self.conv1(x))"""


def node(**noted: str) -> NodeProto:
    made = helper.make_node("Conv", ["x", "w"], ["y"])
    for key, value in noted.items():
        made.metadata_props.add(key={"scopes": NAME_SCOPES_KEY, "trace": STACK_TRACE_KEY}.get(key, key), value=value)
    return made


@pytest.mark.parametrize(
    ("noted", "told"),
    [
        ({}, ""),
        ({"other": "x"}, ""),
        ({"scopes": "['', 'layer1', 'layer1.0.conv1', 'conv2d_3']", "trace": TRACED}, "in layer1.0.conv1, block.py:12"),
        ({"scopes": "['', 'relu']", "trace": TRACED}, "block.py:12"),
        ({"scopes": "['', 'layer1', 'add']"}, "in layer1"),
        ({"scopes": "no list", "trace": "nothing"}, ""),
    ],
)
def test_module_and_line(noted: dict[str, str], told: str) -> None:
    assert source_location_of(node(**noted)) == told


def test_what_a_stranger_notes_is_short_and_printable() -> None:
    found = source_location_of(node(scopes="['', 'a\x1b[31m" + "x" * 380 + "', 'y']"))
    assert len(found) <= MAX_CHARACTERS
    assert found.isprintable()
