"""The sizes of a patch front-end, from those of the pictures alone."""

from __future__ import annotations

from dataclasses import dataclass

from steppe.utils import validation

PATCH = 5  # pixels along one side
_SIDES = (16, 96)
_MOST_COLOURS = 4
_READ = 32  # a side of twice this or more is read at about this
# Grey pictures are told apart by where their strokes lie, colour pictures by what they show.
_GREY = (256, 4)
_COLOUR = (512, 3)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the parts of a front-end.

    Attributes:
        side: pixels along one side of a picture.
        colours: channels of a picture.
        read: pixels along one side after averaging.
        dictionary: patches that each place is compared with.
        grid: places of the pooled maps along one side.
        directions: principal directions of the features that are shrunk.
        reference: number of the direction whose variance is the scale r.
    """

    side: int
    colours: int
    read: int
    dictionary: int
    grid: int
    directions: int
    reference: int

    @property
    def positions(self) -> int:
        """Positions of a patch along one side."""
        return self.read - PATCH + 1

    @property
    def pixels(self) -> int:
        """Numbers in a patch."""
        return self.colours * PATCH**2

    @property
    def patch_features(self) -> int:
        """Numbers in the pooled maps of one picture."""
        return 2 * self.dictionary * self.grid**2


def sizes_for(side: int, colours: int, dictionary: int | None, scattering: int) -> Sizes:
    """The sizes by rule.

    Args:
        side: 16 to 96 pixels.
        colours: 1 to 4.
        dictionary: another size of the dictionary, or None.
        scattering: scattering features beside those of patches; 0 for none.
    """
    low, high = _SIDES
    if not low <= validation.positive_integer("side", side) <= high:
        raise validation.fail(
            "side",
            side,
            f"must lie between {low} and {high}: a patch has {PATCH} × {PATCH} pixels",
            "resize the pictures, or name another model",
        )
    if validation.positive_integer("colours", colours) > _MOST_COLOURS:
        rule = f"must lie between 1 and {_MOST_COLOURS}"
        raise validation.fail("colours", colours, rule, "choose channels")
    entries, grid = _GREY if colours == 1 else _COLOUR
    if dictionary is not None:
        entries = validation.positive_integer("dictionary", dictionary)
    features = 2 * entries * grid**2 + scattering
    directions = min(600 if scattering else 300, features // 4)
    reference = directions * 5 // 6 if scattering else directions * 2 // 3
    return Sizes(side, colours, read_side(side), entries, grid, directions, reference)


def takes_patches(side: int, colours: int) -> bool:
    """Whether a patch front-end takes pictures of this size.

    Examples:
        >>> takes_patches(32, 3), takes_patches(8, 1)
        (True, False)
    """
    low, high = _SIDES
    return low <= side <= high and colours <= _MOST_COLOURS


def read_side(side: int) -> int:
    """The side at which pictures are read: large ones are averaged over squares.

    Examples:
        >>> [read_side(side) for side in (16, 28, 32, 63, 64, 96)]
        [16, 28, 32, 63, 32, 32]
    """
    return side // max(1, side // _READ)
