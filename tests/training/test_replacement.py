"""Attributes that are replaced for as long as a block runs."""

import pytest

from podwright_training.replacement import replaced


class Base:
    """A class with a static method."""

    @staticmethod
    def size() -> int:
        return 1


class Derived(Base):
    """A class that inherits it."""


@pytest.mark.parametrize("owner", [Base, Derived])
def test_an_attribute_is_as_it_was_after_the_block(owner):
    """Also after an error; a static method stays one, and an inherited attribute is inherited again."""
    before = dict(vars(owner))
    with replaced(owner, "size", lambda: 2):
        assert owner.size() == 2
    assert dict(vars(owner)) == before
    with pytest.raises(ZeroDivisionError), replaced(owner, "size", lambda: 1 // 0):
        owner.size()
    assert dict(vars(owner)) == before
    assert Base().size() == Derived().size() == 1


def test_a_name_that_is_not_there_is_refused():
    """A library may rename what the trainer replaces."""
    with pytest.raises(AttributeError, match="length"), replaced(Base, "length", 2):
        pass
