"""Published test accuracies of private training without public data, δ = 10⁻⁵.

From the papers' abstracts and from the leaderboard private-machinelearning.github.io (2024-06-12).
Accountants and sampling differ: see `docs/results/no-public-data.md`.
"""

from __future__ import annotations

from steppe.report.picture import PublishedFigure

_RANDP = "DP-RandP, Tang et al. 2023, arXiv 2306.06076"
_SCATTERNET = "ScatterNet and a linear model, Tramèr and Boneh 2021, arXiv 2011.11660"
_SCATTERNET_CNN = "ScatterNet and a CNN, Tramèr and Boneh 2021, arXiv 2011.11660"
_DE = "WRN, De et al. 2022, arXiv 2204.13650"
_SCALENORM = "ScaleNorm ResNet, Klause et al. 2022, arXiv 2203.00324"
_DPNAS = "DPNASNet, Cheng et al. 2022, arXiv 2110.08557"

FIGURES = (
    PublishedFigure("cifar10", 1.0, 0.723, _RANDP),
    PublishedFigure("cifar10", 2.0, 0.659, _DE),
    PublishedFigure("cifar10", 3.0, 0.693, _SCATTERNET_CNN),
    PublishedFigure("cifar10", 4.0, 0.735, _DE),
    PublishedFigure("cifar10", 8.0, 0.825, _SCALENORM),
    PublishedFigure("cifar10", 8.0, 0.814, _DE),
    PublishedFigure("fashion-mnist", 2.7, 0.895, _SCATTERNET),
    PublishedFigure("fashion-mnist", 3.0, 0.897, _SCATTERNET),
    PublishedFigure("fashion-mnist", 3.0, 0.8809, _DPNAS),
    PublishedFigure("mnist", 1.2, 0.981, _SCATTERNET),
    PublishedFigure("mnist", 2.0, 0.985, _SCATTERNET),
    PublishedFigure("mnist", 2.93, 0.987, _SCATTERNET),
    PublishedFigure("mnist", 3.0, 0.9857, _DPNAS),
)
