"""Random Unicode texts that are likely to show where two tokenizers differ.

All from a seed: the same seed gives the same texts with every version of Python and of its Unicode
tables, because the pool of characters is spelled out in blocks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

# Ranges of code points: scripts with their own rules of marks, case or width, symbols, private use,
# the borders of the surrogates, and blocks that are partly or wholly unassigned.
BLOCKS = [
    (0x00, 0x1F), (0x7F, 0x9F), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x36F), (0x370, 0x3FF),
    (0x400, 0x52F), (0x531, 0x5F4), (0x600, 0x6FF), (0x700, 0x7BF), (0x900, 0x97F),
    (0x980, 0x9FE), (0xB80, 0xBFA), (0xC80, 0xCF3), (0xD00, 0xD7F), (0xE01, 0xE5B),
    (0xE80, 0xEDF), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x11FF), (0x1200, 0x137C),
    (0x13A0, 0x13FD), (0x1680, 0x169C), (0x1780, 0x17F9), (0x1800, 0x18AA), (0x1C80, 0x1CBF),
    (0x1E00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x20F0), (0x2100, 0x218B), (0x2190, 0x23FF),
    (0x2460, 0x24FF), (0x2500, 0x27BF), (0x2C00, 0x2DFF), (0x2E80, 0x2FD5), (0x3000, 0x312F),
    (0x3131, 0x32FF), (0x3300, 0x33FF), (0x3400, 0x34FF), (0x4E00, 0x9FA5), (0xA000, 0xA4C6),
    (0xA640, 0xA7CA), (0xAC00, 0xD7A3), (0xD7F0, 0xD7FF), (0xE000, 0xE00F), (0xF900, 0xFAD9),
    (0xFB00, 0xFDFF), (0xFE00, 0xFE6F), (0xFE70, 0xFEFF), (0xFF00, 0xFFEF), (0xFFF0, 0xFFFF),
    (0x10000, 0x100FA), (0x10400, 0x1044F), (0x10900, 0x1093F), (0x11000, 0x1106F),
    (0x12000, 0x1203F), (0x1D100, 0x1D1E8), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F),
    (0x1EE00, 0x1EEF1), (0x1F100, 0x1F1FF), (0x1F300, 0x1F64F), (0x1F680, 0x1F6D7),
    (0x1F900, 0x1F9FF), (0x20000, 0x2005F), (0x2F800, 0x2FA1D), (0x30000, 0x3000F),
    (0x50000, 0x5000F), (0xE0001, 0xE007F), (0xE0100, 0xE01EF), (0x10FFF0, 0x10FFFF),
]

# Characters in these blocks that came after Unicode 14, the oldest version among those of the
# libraries that a supported system may have (PCRE2 10.42 on Ubuntu 24.04). The reference has its own,
# newer tables for regular expressions, case and digits, so these characters may differ.
NEWER = [
    (0x558, 0x558), (0x58B, 0x58C), (0x5C8, 0x5C9), (0xCDC, 0xCDC), (0xCF3, 0xCF3), (0xECE, 0xECE),
    (0x1C89, 0x1C8A), (0x208F, 0x208F), (0x209D, 0x209F), (0x20C1, 0x20C4), (0x31E4, 0x31E5),
    (0x31EF, 0x31EF), (0xFBC3, 0xFBD2), (0xFD90, 0xFD91), (0xFDC8, 0xFDCE), (0x1D127, 0x1D128),
    (0x1D6A6, 0x1D6A6), (0x1F1AE, 0x1F1AE),
]

FRAGMENTS = [
    " ", "  ", "    ", "\n", "\n\n", "\r\n", "\r", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2028",
    "\u180e", "\u200b", "\u0085", "\0", "\u001f", "'s", "'S", "'LL", "'re", "'\u017f", "n't", "\u2019s",
    "\u00e9", "e\u0301", "\u00b2", "\u00bd", "\u0663", "\u0967", "\u2167", "\u4e00", "\uac00",
    "\u1100\u1161\u11a8", "\u200d", "\u2581", "\u2581\u2581", "<0x41>", "<0xE2>", "...", "_", "-", "--",
    "!?", "=>", "://", "/*", "\u01c5", "\u00aa", "\ufb01", "\u0130", "\u212a", "\u0345", "\u24d0",
    "\u0300\u0316", "\u0316\u0300", "\u093f", "\u0e33", "\u0f73", "\u1e9b\u0323", "\U0001f44d\U0001f3fd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\ufeff", "\ufffd",
    "\ud7ff", "\ue000", "\U0010ffff", "<s>", "</s>", "<unk>", "<|", "|>", "<", ">",
]

WORDS = """the of and to in a that it was he said with his her as for you not had at but they king
daughter forest Once upon time wolf's couldn't I'll beautiful castle THE End return print def self.x
import std::vector 3.14 2024-11-29 1,000 x86_64 C++ snake_case camelCase HTTPServer caf\u00e9 na\u00efve
\u00fcber stra\u00dfe \u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 \u03ba\u03cc\u03c3\u03bc\u03b5 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627
\u0928\u092e\u0938\u094d\u0924\u0947 \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca \uc548\ub155\ud558\uc138\uc694
\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35""".split()


def _near_miss(rng: random.Random, token: str) -> str:
    """A text that is almost the token."""
    at = rng.randrange(len(token) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        return token[:at]
    if kind == 1:
        return token[:at] + token[at + 1 :]
    if kind == 2:
        return token[:at] + rng.choice([" ", "x", token[0]]) + token[at:]
    return token.swapcase()


def random_text(rng: random.Random, added: Sequence[str], words: Sequence[str]) -> str:
    """Up to a few hundred characters. `added` are the tokenizer's added tokens."""
    parts = []
    for _ in range(rng.choice((1, 2, 3, 5, 8, 13, 21))):
        kind = rng.random()
        if kind < 0.22:
            parts.append(rng.choice(FRAGMENTS))
        elif kind < 0.27 and added:
            parts.append(rng.choice(added))
        elif kind < 0.31 and added:
            parts.append(_near_miss(rng, rng.choice(added)))
        elif kind < 0.46:
            low, high = rng.choice(BLOCKS)
            points = [rng.randint(low, high) for _ in range(rng.randint(1, 4))]
            parts.append("".join(chr(point) for point in points
                                 if not any(first <= point <= last for first, last in NEWER)))
        elif kind < 0.70:
            parts.append(rng.choice(words) + rng.choice(("", "", " ", " ", ", ", ".\n")))
        elif kind < 0.75:
            parts.append("".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9))))
        elif kind < 0.80:
            parts.append("".join(rng.choice(" .,;:!?'\"()[]{}<>/\\|@#$%^&*-_=+~`")
                                 for _ in range(rng.randint(1, 6))))
        elif kind < 0.95:
            parts.append("".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(1, 5))))
        else:
            parts.append(rng.choice("aA \n1!\u0301\u4e00=") * rng.randint(1, 80))
    return "".join(parts)


def random_texts(seed: int, count: int, added: Sequence[str] = (),
                 words: Sequence[str] = WORDS) -> list[str]:
    """`count` texts, the first of them empty."""
    rng = random.Random(seed)
    return [""] + [random_text(rng, added, words) for _ in range(count - 1)]
