"""What is it worth that branches exchange features, at one latency?

For two networks, plans of 1, 2, 4 and 8 forks (7 of ResNet-18, whose limits leave no more) of one
predicted latency on mi9's CPU and DSP; each is trained from scratch like the original, on Chinese
characters in fonts that it has not seen. Needs the font packages of glyphs.py and fontconfig. Every
training is a line of the journal, from which an interrupted run goes on and the page is written.

    OMP_NUM_THREADS=1 python scripts/exchange --journal exchange.jsonl
    python scripts/exchange --journal exchange.jsonl --page-only    # of the trainings that are done
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from exchange_page import page, picture, predictions
from exchange_trainings import FORKS, Exchange
from glyphs import glyph_images

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.files.atomic import write_text


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    fonts = "folder below which the fonts are (/usr/share/fonts)"
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"), help=fonts)
    parser.add_argument("--classes", type=int, default=500, help="characters (500)")
    parser.add_argument("--epochs", type=int, default=6, help="of every training (6)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each network (3)")
    networks = "which to train (all)"
    parser.add_argument("--networks", nargs="+", choices=FORKS, default=list(FORKS), help=networks)
    parser.add_argument("--journal", type=Path, required=True, help="a line of each training")
    work = "folder of images and plans (runs/exchange)"
    parser.add_argument("--work", type=Path, default=Path("runs/exchange"), help=work)
    parser.add_argument("--page-only", action="store_true", help="train nothing")
    out = "page, beside it a picture (docs/results/exchange.md)"
    parser.add_argument("--out", type=Path, default=Path("docs/results/exchange.md"), help=out)
    return parser


def training_command() -> str:
    """Return the command that trains what the page is of, and writes it."""
    return command_line().replace(" --page-only", "")


def main() -> int:
    args = arguments().parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    images = args.work.resolve() / f"glyphs{args.classes}"
    glyph_images(args.fonts, images, args.classes)
    exchange = Exchange(images, args.work, args.journal, args.epochs, args.classes)
    if not args.page_only:
        exchange.train_missing(args.networks, args.seeds)
    rows = exchange.done()
    predicted = predictions(exchange, rows)
    write_text(args.out, page(exchange, rows, predicted, args.seeds, training_command()))
    write_text(args.out.with_suffix(".svg"), picture(rows, predicted))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
