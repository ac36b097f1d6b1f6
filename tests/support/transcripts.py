"""What a machine said in a golden transcript."""

from quire.core.transcript import NOTHING, effect_line


def effect_lines(out, ensemble):
    """Everything that a machine said, a line an effect, or the line `nothing`."""
    return [effect_line(effect, ensemble) for effect in out] or [NOTHING]
