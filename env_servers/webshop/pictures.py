"""Pictures of products, rendered from what is known of them: nothing is fetched from other hosts."""

from __future__ import annotations

import hashlib
from math import cos, pi, sin

from paw_gym.envs.webshop.catalogue import Product


def picture(product: Product) -> str:
    """A product's tile as SVG: colours and figure from its category and asin."""
    seed = hashlib.sha256(product.asin.encode()).digest()
    kind = hashlib.sha256(product.query.encode()).digest()
    hue = kind[0] * 360 // 256
    turn = (hue + 25 + seed[0] % 50) % 360
    return (
        '<svg viewBox="0 0 200 200" aria-hidden="true" class="tile" preserveAspectRatio="xMidYMid slice">'
        f'<rect width="200" height="200" fill="hsl({hue} 42% 88%)"/>'
        f'<circle cx="{40 + seed[1] % 120}" cy="{30 + seed[2] % 60}" r="{46 + seed[3] % 30}" '
        f'fill="hsl({turn} 48% 78%)"/>'
        f"{_figure(kind[1] % 4, seed, turn)}</svg>"
    )


def _figure(kind: int, seed: bytes, hue: int) -> str:
    fill, angle = f'fill="hsl({hue} 45% 70%)"', seed[4] * 90 / 256
    if kind == 0:
        return (
            f'<rect x="62" y="62" width="96" height="96" rx="18" {fill} '
            f'transform="rotate({angle:.0f} 110 110)" opacity=".75"/>'
        )
    if kind == 1:
        return f'<ellipse cx="104" cy="118" rx="72" ry="{36 + seed[5] % 26}" {fill} opacity=".75"/>'
    corners = 3 if kind == 2 else 6
    points = " ".join(
        f"{102 + 70 * cos(2 * pi * i / corners + angle):.0f},"
        f"{110 + 70 * sin(2 * pi * i / corners + angle):.0f}"
        for i in range(corners)
    )
    return f'<polygon points="{points}" {fill} opacity=".75"/>'
