"""How the masks of a batch, a different number per sample, are laid out."""

from dataclasses import dataclass

from sa1bpack.arguments import choice


@dataclass(frozen=True)
class MaskLayout:
    """Two independent values. Public names join them: "padded", "flat", "padded_bits", "flat_bits".

    padded  (B, M, ...): M is the mask count of the fullest sample, with zeros after a sample's own
            masks. Otherwise (T, ...): all masks one after the other, with `mask_offsets`
    packed  masks are bits, uint8 (..., Sm, Sm / 8), as in the pack. Otherwise bool (..., Sm, Sm)
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
    """The layout with this public name. Raises OptionError for an unknown name."""
    return LAYOUTS[choice("masks", name, LAYOUTS)]
