"""Can Stochastic Weight Averaging Improve Generalization in Private Learning? (Indri et al.)"""

from steppe.papers.dp_swa.linear import EPSILON, LINEAR
from steppe.papers.dp_swa.logistic import LOGISTIC
from steppe.papers.dp_swa.networks import CIFAR, FASHION
from steppe.papers.dp_swa.spread import SPREAD
from steppe.papers.dp_swa.theorem import THEOREM

EXPERIMENTS = (LINEAR, LOGISTIC, FASHION, EPSILON, THEOREM, CIFAR, SPREAD)
