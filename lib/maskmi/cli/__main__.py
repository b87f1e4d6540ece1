"""``python -m maskmi.cli``, installed as ``maskmi``."""

import click

from maskmi import ROOT
from maskmi.cli.options import DECODERS, GUIDED, Group
from maskmi.cli.protein import protein
from maskmi.cli.sudoku import sudoku


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="maskmi")
def main() -> None:
    """Mutual information of masked positions, and decoding several of them at once."""


@main.command()
def decoders() -> None:
    """The decoders by name, with the value that NAME:VALUE sets, and its default."""
    rows = [("decoder", "value", "what a pass commits")]
    rows += [(f"{name}:{default}", value, what) for name, (value, default, what) in DECODERS.items()]
    for row in rows:
        click.echo(f"{row[0]:22}{row[1]:20}{row[2]}")
    heads = sorted({path.name.split(".head.")[0] for path in (ROOT / "checkpoints").glob("*.head.*")})
    click.echo(f"\n{' and '.join(GUIDED)} need a pair head. Heads are shipped for {', '.join(heads)}.")


main.add_command(sudoku)
main.add_command(protein)

if __name__ == "__main__":
    main(prog_name="maskmi")
