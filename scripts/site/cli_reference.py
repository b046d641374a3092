"""The page of all commands, from their parsers."""

import argparse
import re

from sa1bpack.cli import exits
from sa1bpack.cli.arguments import COMMANDS, command_parser


def page() -> str:
    """The page as Markdown."""
    parts = ["# Commands", "Made from the parsers: the same text as `sa1bpack COMMAND --help`."]
    listed = [f"- [`{name}`](#sa1bpack-{name}): {text}" for name, (_, text) in COMMANDS.items()]
    parts.append("\n".join(listed))
    for name in COMMANDS:
        parts.append(f"## sa1bpack {name}")
        parts.append(_command(command_parser(name)))
    parts += ["## Exit codes", _block("text", exits.EXPLAINED.partition("\n")[2])]
    return "\n\n".join(parts) + "\n"


def _command(parser: argparse.ArgumentParser) -> str:
    usage = parser.format_usage().removeprefix("usage: ")
    parts = [_prose(parser.description or ""), _block("text", usage)]
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if actions and [action.dest for action in actions] != ["help"]:
            parts.append(f"**{(group.title or 'options').capitalize()}**")
            parts += [_prose(group.description)] if group.description else []
            parts += [_argument(parser, action) for action in actions if action.dest != "help"]
    epilog = parser.epilog.removesuffix(exits.SUMMARY).strip("\n")
    return "\n\n".join([*parts, *map(_paragraph, epilog.split("\n\n"))])


def _paragraph(text: str) -> str:
    """A paragraph of an epilog: a list of examples, another list, or prose."""
    head, _, rest = text.partition("\n")
    if head.startswith("example"):
        lines = [line if line.startswith(" ") else f"  # {line}" for line in rest.split("\n")]
        return f"**{head.rstrip(':').capitalize()}**\n\n" + _block("sh", "\n".join(lines))
    prose = [line for line in text.split("\n") if not line.startswith(" ")]
    listed = [line for line in text.split("\n") if line.startswith(" ")]
    return _escaped("\n".join(prose)) + ("\n\n" + _block("text", "\n".join(listed))) * bool(listed)


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=100)
    shown = formatter._format_action_invocation(action)
    text = formatter._expand_help(action) if action.help else ""
    return f"`{shown}`\n:   {_escaped(' '.join(text.split()))}"


def _prose(text: str) -> str:
    """Paragraphs as they are; what is indented is a block."""
    parts = []
    for paragraph in text.strip("\n").split("\n\n"):
        indented = paragraph.startswith(" ")
        parts.append(_block("text", paragraph) if indented else _escaped(paragraph))
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    text = re.sub(r"([<>*_])", r"\\\1", text)
    return re.sub(r"\bdocs/([\w/-]+\.md)", r"[\g<0>](../\1)", text)


def _block(language: str, text: str) -> str:
    lines = text.strip("\n").split("\n")
    least = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join((f"```{language}", *(line[least:] for line in lines), "```"))
