"""``glassformer completion``: what teaches a shell to complete the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

EXAMPLES = (
    "glassformer completion bash >> ~/.bashrc",
    "glassformer completion zsh >> ~/.zshrc",
    "glassformer completion fish > ~/.config/fish/completions/glassformer.fish",
)
SHELLS = {
    "bash": """_glassformer() {
    local IFS=$'\\n'
    COMPREPLY=($(glassformer completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _glassformer glassformer""",
    "zsh": """_glassformer() {
    local found=(${(f)"$(glassformer completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    (( $#found )) && compadd -a found || _files
}
compdef _glassformer glassformer""",
    "fish": """complete -c glassformer \\
    -a '(glassformer completion words -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'""",
}


def options(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "shell", choices=[*SHELLS, "words"], help="words: what may stand where the last WORD does"
    )
    one.add_argument(
        "words", nargs="*", metavar="WORD", help="with words: the command line as far as it goes"
    )


def run(given: argparse.Namespace) -> None:
    print(SHELLS[given.shell] if given.shell in SHELLS else "\n".join(candidates(given.words)))


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of these words may become; nothing where it is a file or free text."""
    from ..cli import parser

    *before, last = words or [""]
    one = parser(before[:1])
    while before and before[0] in one.verbs:
        one = one.verbs[before.pop(0)]
    asking = one.asking(before)
    if asking is not None:
        found = [str(choice) for choice in asking.choices or ()]
    elif one.verbs:
        found = [*one.verbs, *one.options]
    elif last.startswith("-"):
        from ..config import settings

        more = (
            dict.fromkeys(f"--{setting.path}" for setting in settings.every())
            if one.get_default("open")
            else ()
        )
        found = [*one.options, *more]
    else:
        found = [
            str(choice)
            for action in one._get_positional_actions()
            for choice in action.choices or ()
        ]
    return [word for word in found if word.startswith(last)]
