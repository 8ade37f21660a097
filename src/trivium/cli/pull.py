"""`trivium pull`: fetch a model."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("pull")
@click.argument("name")
def command(name: str) -> None:
    """Fetch the model NAME if it is not on this machine yet, and print its path.

    NAME is a name of the catalogue, such as smollm2, or owner/name on the Hugging Face hub. Progress goes to stderr.
    """
    from trivium.models.catalogue import resolve_model

    click.echo(resolve_model(name))
