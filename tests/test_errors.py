"""What errors say of a wrong value."""

from __future__ import annotations

import pytest

from trivium import SamplingParams
from trivium.errors import RequestError


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-1, "-1"), ("x", "'x'"), ("x" * 300, "'" + "x" * 199), ([1] * 300, "[" + "1, " * 66 + "1"), (None, "None")],
    ids=["number", "text", "long text", "long list", "nothing"],
)
def test_a_value_is_shown_and_cut_short(value, shown):
    error = RequestError.out_of_range("seed", "an integer", value)
    assert str(error) == f"seed must be an integer, got {shown}"
    assert (error.field, error.allowed, error.value) == ("seed", "an integer", value)


@pytest.mark.parametrize("name", ["seed", "min_tokens", "top_k"])
def test_an_integer_of_too_many_digits_is_refused_by_name(name):
    """Python refuses to write more than 4,300 of them."""
    with pytest.raises(RequestError, match=f"^{name} must be an integer .*, got an integer of more digits than Python writes$"):
        SamplingParams(**{name: -(10**5000)})


def test_so_is_one_where_a_text_is_due():
    with pytest.raises(TypeError, match=r"^stop must be .*, got an integer of more digits than Python writes$"):
        SamplingParams(stop=10**5000)
