"""``paw certify``: the certificate of a result, written and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from paw_train.evaluation.certificates.claims import Claims

REFUSED = 1
"""exit code of a result or a certificate that does not hold"""


def certify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="The folder of a [cyan]paw eval[/cyan], or a [cyan].jsonl[/cyan] file of trajectories "
            "that another trainer recorded; with [cyan]--check[/cyan] a certificate.",
        ),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Check a certificate instead of writing one.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The certificate to write; default: beside the result.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Private key to sign with (Ed25519, PEM); default: your own, created on first use."
        ),
    ] = None,
    unsigned: Annotated[
        bool, typer.Option("--unsigned", help="Write without a signature.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option(help="Episodes to replay; default: all.", min=1)
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Replay all episodes (the default).")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of that sample; default: a fresh one, which is printed.", min=0),
    ] = None,
    signer: Annotated[
        str | None,
        typer.Option(help="Public key (or a file with it) that must have signed the certificate."),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("--import", help="Module to import first, which registers the environment."),
    ] = None,
    kw: Annotated[
        list[str] | None,
        typer.Option(
            "--kw",
            "-k",
            metavar="KEY=VALUE",
            help="An argument of the environment that locates data, such as [cyan]data_dir=DIR[/cyan].",
        ),
    ] = None,
) -> None:
    """Certify a result: a signed file with the actions that led to it, which anyone can replay.

    Every episode is replayed before it is certified. With [cyan]--check[/cyan], replay the actions of a
    certificate, all or a sample, and compare observations, rewards and scores with the claims. Exit code 1:
    it does not hold.
    """
    from paw_train.cli.arguments import parse_settings

    if check:
        if out or key or unsigned:
            raise ValueError(
                "--out, --key and --unsigned are for writing; leave them out of --check."
            )
        if sample is not None and every:
            raise ValueError("Give either --sample N or --all.")
        _check(path, sample, seed, signer, parse_settings(kw), module)
        return
    if every or sample is not None or seed is not None or signer or module:
        raise ValueError("--all, --sample, --seed, --signer and --import belong to --check.")
    if key and unsigned:
        raise ValueError("Give either --key FILE or --unsigned.")
    _write(path, out, key, not unsigned, parse_settings(kw))


def _write(
    path: Path, out: Path | None, key: Path | None, signed: bool, given: dict[str, Any]
) -> None:
    from paw_train.evaluation.certificates import keys
    from paw_train.evaluation.certificates.writing import NotReplayableError
    from paw_train.evaluation.certificates.writing import certify as write

    new = signed and key is None and not keys.default_key().exists()
    try:
        place, claims, signer = write(path, out, key, signed, given)
    except NotReplayableError as error:
        typer.echo(f"NOT CERTIFIED: {error}", err=True)
        raise typer.Exit(REFUSED) from None
    typer.echo(_headline(claims))
    if new:
        typer.echo(f"A key was created for you: {keys.default_key()}. Keep it; it signs as you.")
    typer.echo(f"Signed by {signer.public}" if signer else "Not signed.")
    typer.echo(f"Written to {place}. Check it anywhere: paw certify --check {place}")


def _check(
    path: Path,
    sample: int | None,
    seed: int | None,
    signer: str | None,
    given: dict[str, Any],
    module: str | None,
) -> None:
    import secrets

    from paw_train.evaluation.certificates import keys
    from paw_train.evaluation.certificates.checking import check

    # a forger must not know which episodes will be replayed
    chosen = secrets.randbelow(2**31) if seed is None else seed
    pinned = keys.read_public(signer) if signer else None
    verdict = check(path, sample, chosen, pinned, given, module)
    typer.echo(_headline(verdict.claims))
    for line in verdict.passed:
        typer.echo(f"  {line}")
    for line in verdict.failed:
        typer.echo(f"REFUSED: {line}", err=True)
    if not verdict.holds:
        raise typer.Exit(REFUSED)
    if pinned is None and verdict.signer is not None:
        typer.echo("  Whose key that is, only you can know: --signer KEY requires it.")
    typer.echo("VERIFIED")


def _headline(claims: Claims) -> str:
    from paw_train.evaluation.certificates.claims import headline

    return headline(claims)
