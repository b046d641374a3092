"""How the masks of several samples, of which each has another number, are laid out in a batch."""

from dataclasses import dataclass

from sa1bpack.arguments import choice


@dataclass(frozen=True)
class MaskLayout:
    """Two independent values. Public names join them: "padded", "flat", "padded_bits", "flat_bits".

    padded  (B, M, ...): M is the largest number of masks of a sample, zero after a sample's own.
            Else (T, ...): all masks one after the other, with `mask_offsets`
    packed  masks are bits, uint8 (..., Sm, Sm / 8), as in the pack. Else bool (..., Sm, Sm)
    """

    padded: bool
    packed: bool

    @property
    def name(self) -> str:
        """The public name."""
        return ("padded" if self.padded else "flat") + ("_bits" if self.packed else "")


LAYOUTS = {
    layout.name: layout
    for layout in (
        MaskLayout(padded, packed) for packed in (False, True) for padded in (True, False)
    )
}


def mask_layout(name: str) -> MaskLayout:
    """The layout of that public name. Raises OptionError if there is none."""
    return LAYOUTS[choice("masks", name, LAYOUTS)]
