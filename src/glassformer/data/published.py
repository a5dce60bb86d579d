"""Published sets of examples, a file at a time: where each is fetched from, what it must be, its licence as stated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .. import files
from ..errors import UserError, nearest
from .registry import Download, download


@dataclass(frozen=True)
class Origin:
    """A GitHub repository at a commit, and what of it is used: name -> (path, SHA-256)."""

    repository: str
    commit: str
    licence: str
    files: dict[str, tuple[str, str]]

    def download(self, folder: str, name: str) -> Download:
        """One file."""
        path, sha256 = self.files[name]
        url = f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{path}"
        return Download(f"{folder}/{name}", url, sha256)


def places() -> list[str]:
    """Every file by its name here, such as ``scan/tasks_train_simple.txt``."""
    return [f"{folder}/{name}" for folder, origin in SETS.items() for name in origin.files]


def locate(where: str) -> Path:
    """The file at a path, or the published one of that name: from GLASSFORMER_DATA, the cache or the network.

    Raises UserError where there is neither, and for a published file whose content is another.
    """
    path = Path(where).expanduser()
    folder, _, name = where.partition("/")
    if path.exists() or folder not in SETS:
        return path
    origin = SETS[folder]
    if name not in origin.files:
        raise UserError(f"There is no file {where}.{nearest(where, places())}")
    file = origin.download(folder, name)
    cached = files.cache_home() / "examples" / file.place
    home = files.data_home()
    for there in ([home / file.place] if home is not None else []) + [cached]:
        if there.is_file():
            if files.sha256(there) == file.sha256:
                return there
            if there != cached:
                raise UserError(
                    f"{there} is not the published file (its SHA-256 differs); restore it, or give its path "
                    f"from here to use it as it is."
                )
    files.write(cached, download(where, file))
    return cached


SETS = {
    "scan": Origin(
        "brendenlake/SCAN",
        "c4b756cbc010d75c912f16c42c8f15dc6b7e6c8f",
        "BSD",
        {
            "tasks_train_simple.txt": (
                "simple_split/tasks_train_simple.txt",
                "941bb8a088c5f53ceff12fde902dc008933cf0c4203cc672c47b5f79d73262dd",
            ),
            "tasks_test_simple.txt": (
                "simple_split/tasks_test_simple.txt",
                "1fe1c8f5a19d0dc40e41bab94278f45f66f3dc415a978bd29855a23440610fc6",
            ),
            "tasks_train_length.txt": (
                "length_split/tasks_train_length.txt",
                "b034212dc7cf87ce62f3a067dd6ad49c4d5cd18d51d615d13825516bcb1ebbc2",
            ),
            "tasks_test_length.txt": (
                "length_split/tasks_test_length.txt",
                "0760752ed34a75116ae11dcc1ee17526b7500060da1366540730fa24894d7db3",
            ),
        },
    ),
    "multi30k-bpe-ende": Origin(
        "LividWo/Revisit-MMT",
        "dc368d0af8d60270b8f4aaa2f3ac58771c551da3",
        "none stated; Multi30k non-commercial research/education",
        {
            "train.en": (
                "data/multi30k-en-de/train.en",
                "0ffe3e3bac16e6aa33ef0dd6a7dca81587479b0d18dff0db2a92ac3f32b00c86",
            ),
            "train.de": (
                "data/multi30k-en-de/train.de",
                "b2c74def7ec129f7ea7023a51501c77174c377ef06c6ccc2f031adcfb5cfadbd",
            ),
            "valid.en": (
                "data/multi30k-en-de/valid.en",
                "193d0d18fef5d1bc9d1cddafa13a644de3c5d6a24b45ac44476dcc5e96bfac6e",
            ),
            "valid.de": (
                "data/multi30k-en-de/valid.de",
                "eeb95680d6a06eafb13e3494eed9f9fa99783b892f4a3c72dd36e7ce2e000b68",
            ),
            "test.2016.en": (
                "data/multi30k-en-de/test.2016.en",
                "13b5fe3f92f78c54446d66afcaaa0a00a33ab653a8411f16812c9c5ca3795d6d",
            ),
            "test.2016.de": (
                "data/multi30k-en-de/test.2016.de",
                "375c20d50f4c486149a78dfcfb161a430a04ddabe2b7d150f0c7811dc455ac60",
            ),
            "test.2017.en": (
                "data/multi30k-en-de/test.2017.en",
                "5252390a58d57bce8d6a69a973e4908e98c7b70d3fc7ccc9c3963747ae8b177d",
            ),
            "test.2017.de": (
                "data/multi30k-en-de/test.2017.de",
                "9deefbe5705b60c3b5a790146e232b411a0da0420fd194ed6f6ad3a2674340a0",
            ),
            "test.coco.en": (
                "data/multi30k-en-de/test.coco.en",
                "82d825317109d12260cfd637a23d2bf7c564308546f56e341047b2067c0dba8b",
            ),
            "test.coco.de": (
                "data/multi30k-en-de/test.coco.de",
                "5cfc9d5e6511565c53c390598d7a69d14dd302c1a374a16c56959224c5a54d99",
            ),
            "code": (
                "data/multi30k-en-de/code",
                "5b545f318e49f24367c7399019c9aeb5e3720b6379a08f887c2792af71c37f2a",
            ),
        },
    ),
    "sst2": Origin(
        "clairett/pytorch-sentiment-classification",
        "457ffd83de90a9d6d472d8ffc31bbffe40a8b236",
        "none stated (SST: Stanford)",
        {
            "train.tsv": (
                "data/SST2/train.tsv",
                "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920",
            ),
            "dev.tsv": (
                "data/SST2/dev.tsv",
                "eddea6b39e601dd4e7a672b53cc40fdf6019fa80522f351206c24340ca5d9359",
            ),
            "test.tsv": (
                "data/SST2/test.tsv",
                "831169c7e2e429d6026e1bdbb542f33b636e3e596caad9602ebc953c205928b7",
            ),
        },
    ),
    "cola": Origin(
        "nyu-mll/CoLA-baselines",
        "dd095d3646ed05a315280aaa8ed4ec84ba435b3e",
        "no LICENSE; corpus README states terms",
        {
            "in_domain_train.tsv": (
                "acceptability_corpus/cola_public/raw/in_domain_train.tsv",
                "f320a10f92d3bce6b29152fde322a362eac39238e50d8de0c8815457fdf4fc12",
            ),
            "in_domain_dev.tsv": (
                "acceptability_corpus/cola_public/raw/in_domain_dev.tsv",
                "77176f6a03faa5a1c4f23c69971fc1bff565931112fb65af47b2d6e24b7f42f7",
            ),
            "out_of_domain_dev.tsv": (
                "acceptability_corpus/cola_public/raw/out_of_domain_dev.tsv",
                "201b9c57b2a20f1282242eec0ed8995729e3be19c29a46c047b3727338836c05",
            ),
        },
    ),
    "scitldr": Origin(
        "allenai/scitldr",
        "5ccad9c00a60ad75c9e04abf7f27d0f53f983b20",
        "Apache-2.0",
        {
            "train.jsonl": (
                "SciTLDR-Data/SciTLDR-A/train.jsonl",
                "b222771d387be585cfdf5ae957b36757138415a352e0a3e3b23f73f87c3b1119",
            ),
            "dev.jsonl": (
                "SciTLDR-Data/SciTLDR-A/dev.jsonl",
                "3191fa98ccc09521332b7a1cd63b1930be4e8df125a235ccd31e40329709525e",
            ),
            "test.jsonl": (
                "SciTLDR-Data/SciTLDR-A/test.jsonl",
                "fb42dd6cd4f4a1928ae8a01a189456fbfe994a07e938bd49f68653933f6503c9",
            ),
        },
    ),
}
