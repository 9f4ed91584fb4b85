"""Images of Chinese characters in real fonts: some fonts to train on, others to be judged by.

Fonts are Debian's (bookworm). They are read where they lie, below a folder: after
`apt-get install PACKAGES`, /usr/share/fonts; or any folder that the packages were unpacked to by
`dpkg -x`. The classes are characters of GB 2312's first level that all the fonts have, spread
evenly over Unicode's order. Each is drawn once in each font, at a place and size that its font and
character decide.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw, ImageFont, ImageOps

from nnstretch.errors import BadInput

TRAIN_FONTS = {
    "fonts-arphic-uming": ("uming.ttc",),
    "fonts-arphic-ukai": ("ukai.ttc",),
    "fonts-arphic-bkai00mp": ("bkai00mp.ttf",),
    "fonts-arphic-bsmi00lp": ("bsmi00lp.ttf",),
    "fonts-arphic-gbsn00lp": ("gbsn00lp.ttf",),
    "fonts-wqy-zenhei": ("wqy-zenhei.ttc",),
    "fonts-wqy-microhei": ("wqy-microhei.ttc",),
    "fonts-noto-cjk": ("NotoSansCJK-Regular.ttc", "NotoSerifCJK-Bold.ttc"),
    "fonts-noto-cjk-extra": ("NotoSansCJK-Black.ttc", "NotoSerifCJK-Light.ttc"),
    "fonts-cwtex-fs": ("cwfs.ttf",),
    "fonts-cwtex-heib": ("cwheib.ttf",),
    "fonts-cwtex-ming": ("cwming.ttf",),
    "fonts-lxgw-wenkai": ("LXGWWenKai-Regular.ttf",),
    "fonts-hanazono": ("HanaMinA.ttf",),
    "fonts-cns11643-sung": ("TW-Sung-98_1.ttf",),
    "fonts-ipafont-gothic": ("ipag.ttf",),
    "fonts-motoya-l-cedar": ("MTLc3m.ttf",),
    "fonts-yusei-magic": ("YuseiMagic-Regular.ttf",),
    "fonts-horai-umefont": ("ume-tmo3.ttf",),
    "fonts-kiloji": ("kiloji.ttf",),
}
"""Files by package."""
HELD_OUT_FONTS = {
    "fonts-arphic-gkai00mp": ("gkai00mp.ttf",),
    "fonts-cwtex-yen": ("cwyen.ttf",),
    "fonts-cwtex-kai": ("cwkai.ttf",),
    "fonts-smiley-sans": ("SmileySans-Oblique.ttf",),
    "fonts-seto": ("setofont.ttf",),
    "fonts-klee": ("KleeOne-Regular.ttf",),
    "fonts-motoya-l-maruberi": ("MTLmr3m.ttf",),
    "fonts-babelstone-han": ("BabelStoneHan.ttf",),
}
SIZES_PX = (24, 28)
"""Smallest and largest size of a character in an image of 32."""
MOST_SHIFT_PX = 2
IMAGE_PX = 32
GB2312_LEVEL_1 = range(0xB0, 0xD8)
"""First bytes of the characters that are most used."""


def glyph_images(fonts: Path, folder: Path, classes: int) -> None:
    """Draw the data set into a folder as `train` and `val`, once. Raises BadInput."""
    if folder.exists():
        return
    paths = {name: font_path(fonts, name) for name in (*names(TRAIN_FONTS), *names(HELD_OUT_FONTS))}
    characters = common_characters(list(paths.values()), classes)
    unfinished = folder.with_name(folder.name + "-unfinished")
    for part, of_part in (("train", TRAIN_FONTS), ("val", HELD_OUT_FONTS)):
        for name in names(of_part):
            draw_font(paths[name], characters, unfinished / part)
    unfinished.rename(folder)


def names(fonts: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the files of all packages."""
    return tuple(name for files in fonts.values() for name in files)


def font_path(fonts: Path, name: str) -> Path:
    """Return where a font lies below a folder. Raises BadInput where it is missing."""
    path = next(iter(sorted(fonts.rglob(name))), None)
    if path is None:
        packages = " ".join((*TRAIN_FONTS, *HELD_OUT_FONTS))
        raise BadInput(f"font {name} is missing, below {fonts}, apt-get install {packages}")
    return path


def common_characters(paths: Sequence[Path], classes: int) -> list[str]:
    """Return characters of GB 2312's first level that all fonts have. Raises BadInput."""
    common = {ord(character) for character in level_1()}
    for path in paths:
        common &= code_points(path)
    if len(common) < classes:
        raise BadInput(f"all fonts have {len(common)} characters in common, wanted are {classes}")
    ordered = sorted(common)
    return [chr(ordered[number * len(ordered) // classes]) for number in range(classes)]


def level_1() -> Iterator[str]:
    """Yield the characters of GB 2312's first level."""
    for high in GB2312_LEVEL_1:
        for low in range(0xA1, 0xFF):
            yield from bytes((high, low)).decode("gb2312", errors="ignore")


def code_points(path: Path) -> set[int]:
    """Return the code points that a font has, as fontconfig tells them."""
    command = ["fc-query", "-i", "0", "--format=%{charset}", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    points: set[int] = set()
    for span in told.split():
        first, _, last = span.partition("-")
        points.update(range(int(first, 16), int(last or first, 16) + 1))
    return points


def draw_font(path: Path, characters: Sequence[str], folder: Path) -> None:
    """Draw every character in a font, a file each."""
    by_size = {px: ImageFont.truetype(path, px) for px in range(SIZES_PX[0], SIZES_PX[1] + 1)}
    for character in characters:
        chance = Random(f"{path.name} {character}")
        font = by_size[chance.randint(*SIZES_PX)]
        shift = [chance.randint(-MOST_SHIFT_PX, MOST_SHIFT_PX) for _ in "xy"]
        target = folder / f"{ord(character):04x}"
        target.mkdir(parents=True, exist_ok=True)
        draw_glyph(font, character, shift).save(target / f"{path.stem}.png")


def draw_glyph(font: ImageFont.FreeTypeFont, character: str, shift: Sequence[int]) -> Image.Image:
    """Draw a character in black on white, its ink in the middle but for a shift."""
    sheet = Image.new("L", (3 * IMAGE_PX, 3 * IMAGE_PX), 0)
    ImageDraw.Draw(sheet).text((IMAGE_PX, IMAGE_PX), character, fill=255, font=font)
    ink = sheet.getbbox()
    if ink is None:
        raise BadInput(f"no ink, {character} in {font.getname()[0]}, take another font")
    left = (ink[0] + ink[2] - IMAGE_PX) // 2 - shift[0]
    top = (ink[1] + ink[3] - IMAGE_PX) // 2 - shift[1]
    image = sheet.crop((left, top, left + IMAGE_PX, top + IMAGE_PX))
    return ImageOps.invert(image).convert("RGB")
