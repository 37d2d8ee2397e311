"""The papers behind a run, as BibTeX.

A method joins by a row in `_BY_CLASS` and, if its paper is new here, an entry in `_ENTRIES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from steppe.plan import Plan
from steppe.utils import validation

# Whatever the choices: the mechanism and the way its cost is computed.
_ALWAYS = ("abadi2016deep", "koskela2020computing", "doroshenko2022connect")

# By the name of the class, so that citing a method does not import its room.
_BY_CLASS: dict[str, tuple[str, ...]] = {
    "CappedPoisson": ("ganesh2025tighter",),
    "CyclicPoisson": ("choquette2023amplified",),
    "Periodic": ("shejwalkar2025recycling", "zhu2022diurnal"),
    "SAM": ("foret2021sharpness", "park2023differentially"),
    "ASAM": ("kwon2021asam",),
    "AMP": ("zheng2021regularizing",),
    "DPAdapter": ("wang2024dpadapter",),
    "KeptPerturbation": ("wang2024dpadapter",),
    "MeanPerturbation": ("wang2024dpadapter",),
    "Contrastive": ("chen2020simple",),
    "LoRA": ("hu2022lora",),
    "SAT": ("park2023differentially",),
    "SATMomentum": ("park2023differentially",),
    "Quantile": ("andrew2021differentially",),
    "Automatic": ("bu2023automatic",),
    "PerLayer": ("mcmahan2018learning",),
    "GEP": ("yu2021not",),
    "NoiseSchedule": ("yu2019differentially",),
    "Correlated": ("denisov2022improved",),
    "Tree": ("kairouz2021practical", "honaker2015efficient"),
    "SqrtToeplitz": ("fichtenberger2023constant",),
    "BandedToeplitz": ("choquette2023amplified",),
    "BLT": ("mcmahan2024hassle",),
    "BISR": ("kalinin2025back",),
    "Dense": ("choquette2023multi",),
    "DPAdam": ("tang2024dpadambc",),
    "DecoupledDecay": ("loshchilov2019decoupled",),
    "SWA": ("indri2023can", "izmailov2018averaging"),
    "EMA": ("shejwalkar2025recycling", "de2022unlocking"),
    "Window": ("shejwalkar2025recycling",),
    "PolynomialDecay": ("shejwalkar2025recycling",),
    "PowerAverages": ("shejwalkar2025recycling", "karras2024analyzing"),
    "OPA": ("shejwalkar2025recycling",),
    "OMV": ("shejwalkar2025recycling",),
}
_L2 = ("guo2024differential",)
_VIEWS = ("de2022unlocking",)

_ENTRIES: dict[str, str] = {
    "abadi2016deep": """@inproceedings{abadi2016deep,
  title = {Deep Learning with Differential Privacy},
  author = {Abadi, Mart{\\'i}n and Chu, Andy and Goodfellow, Ian and McMahan, H. Brendan and
            Mironov, Ilya and Talwar, Kunal and Zhang, Li},
  booktitle = {ACM SIGSAC Conference on Computer and Communications Security},
  pages = {308--318},
  year = {2016},
}""",
    "denisov2022improved": """@inproceedings{denisov2022improved,
  title = {Improved Differential Privacy for {SGD} via Optimal Private Linear Operators on Adaptive
           Streams},
  author = {Denisov, Sergey and McMahan, H. Brendan and Rush, John and Smith, Adam and
            Thakurta, Abhradeep Guha},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2022},
}""",
    "kairouz2021practical": """@inproceedings{kairouz2021practical,
  title = {Practical and Private (Deep) Learning without Sampling or Shuffling},
  author = {Kairouz, Peter and McMahan, Brendan and Song, Shuang and Thakkar, Om and
            Thakurta, Abhradeep and Xu, Zheng},
  booktitle = {International Conference on Machine Learning},
  year = {2021},
}""",
    "honaker2015efficient": """@misc{honaker2015efficient,
  title = {Efficient Use of Differentially Private Binary Trees},
  author = {Honaker, James},
  note = {Theory and Practice of Differential Privacy},
  year = {2015},
}""",
    "fichtenberger2023constant": """@inproceedings{fichtenberger2023constant,
  title = {Constant Matters: Fine-grained Error Bound on Differentially Private Continual
           Observation},
  author = {Fichtenberger, Hendrik and Henzinger, Monika and Upadhyay, Jalaj},
  booktitle = {International Conference on Machine Learning},
  year = {2023},
}""",
    "choquette2023multi": """@inproceedings{choquette2023multi,
  title = {Multi-Epoch Matrix Factorization Mechanisms for Private Machine Learning},
  author = {Choquette-Choo, Christopher A. and McMahan, H. Brendan and Rush, Keith and
            Thakurta, Abhradeep},
  booktitle = {International Conference on Machine Learning},
  year = {2023},
}""",
    "choquette2023amplified": """@inproceedings{choquette2023amplified,
  title = {(Amplified) Banded Matrix Factorization: A unified approach to private training},
  author = {Choquette-Choo, Christopher A. and Ganesh, Arun and McKenna, Ryan and
            McMahan, H. Brendan and Rush, Keith and Guha Thakurta, Abhradeep and Xu, Zheng},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2023},
}""",
    "mcmahan2024hassle": """@misc{mcmahan2024hassle,
  title = {A Hassle-free Algorithm for Private Learning in Practice: Don't Use Tree Aggregation,
           Use {BLTs}},
  author = {McMahan, H. Brendan and Xu, Zheng and Zhang, Yanxiang},
  note = {arXiv 2408.08868},
  year = {2024},
}""",
    "kalinin2025back": """@misc{kalinin2025back,
  title = {Back to Square Roots: An Optimal Bound on the Matrix Factorization Error for Multi-Epoch
           Differentially Private {SGD}},
  author = {Kalinin, Nikita P. and McKenna, Ryan and Upadhyay, Jalaj and Lampert, Christoph H.},
  note = {arXiv 2505.12128},
  year = {2025},
}""",
    "koskela2020computing": """@inproceedings{koskela2020computing,
  title = {Computing Tight Differential Privacy Guarantees Using {FFT}},
  author = {Koskela, Antti and J{\\"a}lk{\\"o}, Joonas and Honkela, Antti},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year = {2020},
}""",
    "doroshenko2022connect": """@article{doroshenko2022connect,
  title = {Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions},
  author = {Doroshenko, Vadym and Ghazi, Badih and Kamath, Pritish and Kumar, Ravi and
            Manurangsi, Pasin},
  journal = {Proceedings on Privacy Enhancing Technologies},
  volume = {2022},
  number = {4},
  pages = {552--570},
  year = {2022},
}""",
    "ganesh2025tighter": """@misc{ganesh2025tighter,
  title = {Tighter Privacy Analysis for Truncated {P}oisson Sampling},
  author = {Ganesh, Arun},
  eprint = {2508.15089},
  archivePrefix = {arXiv},
  year = {2025},
}""",
    "zhu2022diurnal": """@inproceedings{zhu2022diurnal,
  title = {Diurnal or Nocturnal? {F}ederated Learning of Multi-branch Networks from Periodically
           Shifting Distributions},
  author = {Zhu, Chen and Xu, Zheng and Chen, Mingqing and Kone{\\v{c}}n{\\'y}, Jakub and
            Hard, Andrew and Goldstein, Tom},
  booktitle = {International Conference on Learning Representations},
  year = {2022},
}""",
    "foret2021sharpness": """@inproceedings{foret2021sharpness,
  title = {Sharpness-Aware Minimization for Efficiently Improving Generalization},
  author = {Foret, Pierre and Kleiner, Ariel and Mobahi, Hossein and Neyshabur, Behnam},
  booktitle = {International Conference on Learning Representations},
  year = {2021},
}""",
    "kwon2021asam": """@inproceedings{kwon2021asam,
  title = {{ASAM}: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep
           Neural Networks},
  author = {Kwon, Jungmin and Kim, Jeongseop and Park, Hyunseo and Choi, In Kwon},
  booktitle = {International Conference on Machine Learning},
  year = {2021},
}""",
    "zheng2021regularizing": """@inproceedings{zheng2021regularizing,
  title = {Regularizing Neural Networks via Adversarial Model Perturbation},
  author = {Zheng, Yaowei and Zhang, Richong and Mao, Yongyi},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year = {2021},
}""",
    "wang2024dpadapter": """@inproceedings{wang2024dpadapter,
  title = {{DPAdapter}: Improving Differentially Private Deep Learning through Noise Tolerance
           Pre-training},
  author = {Wang, Zihao and Zhu, Rui and Zhou, Dongruo and Zhang, Zhikun and Mitchell, John and
            Tang, Haixu and Wang, XiaoFeng},
  booktitle = {USENIX Security Symposium},
  year = {2024},
}""",
    "chen2020simple": """@inproceedings{chen2020simple,
  title = {A Simple Framework for Contrastive Learning of Visual Representations},
  author = {Chen, Ting and Kornblith, Simon and Norouzi, Mohammad and Hinton, Geoffrey},
  booktitle = {International Conference on Machine Learning},
  year = {2020},
}""",
    "hu2022lora": """@inproceedings{hu2022lora,
  title = {{LoRA}: Low-Rank Adaptation of Large Language Models},
  author = {Hu, Edward J. and Shen, Yelong and Wallis, Phillip and Allen-Zhu, Zeyuan and Li, Yuanzhi
            and Wang, Shean and Wang, Lu and Chen, Weizhu},
  booktitle = {International Conference on Learning Representations},
  year = {2022},
}""",
    "park2023differentially": """@inproceedings{park2023differentially,
  title = {Differentially Private Sharpness-Aware Training},
  author = {Park, Jinseong and Kim, Hoki and Choi, Yujin and Lee, Jaewook},
  booktitle = {International Conference on Machine Learning},
  series = {Proceedings of Machine Learning Research},
  volume = {202},
  pages = {27204--27224},
  year = {2023},
}""",
    "yu2019differentially": """@inproceedings{yu2019differentially,
  title = {Differentially Private Model Publishing for Deep Learning},
  author = {Yu, Lei and Liu, Ling and Pu, Calton and Gursoy, Mehmet Emre and Truex, Stacey},
  booktitle = {IEEE Symposium on Security and Privacy},
  pages = {332--349},
  year = {2019},
}""",
    "andrew2021differentially": """@inproceedings{andrew2021differentially,
  title = {Differentially Private Learning with Adaptive Clipping},
  author = {Andrew, Galen and Thakkar, Om and McMahan, H. Brendan and Ramaswamy, Swaroop},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {34},
  year = {2021},
}""",
    "bu2023automatic": """@inproceedings{bu2023automatic,
  title = {Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger},
  author = {Bu, Zhiqi and Wang, Yu-Xiang and Zha, Sheng and Karypis, George},
  booktitle = {Advances in Neural Information Processing Systems},
  volume = {36},
  year = {2023},
}""",
    "mcmahan2018learning": """@inproceedings{mcmahan2018learning,
  title = {Learning Differentially Private Recurrent Language Models},
  author = {McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang, Li},
  booktitle = {International Conference on Learning Representations},
  year = {2018},
}""",
    "yu2021not": """@inproceedings{yu2021not,
  title = {Do Not Let Privacy Overbill Utility: Gradient Embedding Perturbation for Private
           Learning},
  author = {Yu, Da and Zhang, Huishuai and Chen, Wei and Liu, Tie-Yan},
  booktitle = {International Conference on Learning Representations},
  year = {2021},
}""",
    "loshchilov2019decoupled": """@inproceedings{loshchilov2019decoupled,
  title = {Decoupled Weight Decay Regularization},
  author = {Loshchilov, Ilya and Hutter, Frank},
  booktitle = {International Conference on Learning Representations},
  year = {2019},
}""",
    "tang2024dpadambc": """@inproceedings{tang2024dpadambc,
  title = {{DP-AdamBC}: Your {DP-Adam} Is Actually {DP-SGD} (Unless You Apply Bias Correction)},
  author = {Tang, Qiaoyue and Shpilevskiy, Frederick and L{\\'e}cuyer, Mathias},
  booktitle = {AAAI Conference on Artificial Intelligence},
  volume = {38},
  number = {14},
  pages = {15276--15283},
  year = {2024},
}""",
    "indri2023can": """@misc{indri2023can,
  title = {Can Stochastic Weight Averaging Improve Generalization in Private Learning?},
  author = {Indri, Patrick and Drucks, Tamara and G{\\"a}rtner, Thomas},
  howpublished = {TU Wien},
  year = {2023},
}""",
    "izmailov2018averaging": """@inproceedings{izmailov2018averaging,
  title = {Averaging Weights Leads to Wider Optima and Better Generalization},
  author = {Izmailov, Pavel and Podoprikhin, Dmitrii and Garipov, Timur and Vetrov, Dmitry and
            Wilson, Andrew Gordon},
  booktitle = {Conference on Uncertainty in Artificial Intelligence},
  year = {2018},
}""",
    "shejwalkar2025recycling": """@article{shejwalkar2025recycling,
  title = {Recycling Scraps: Improving Private Learning by Leveraging Checkpoints},
  author = {Shejwalkar, Virat and Ganesh, Arun and Mathews, Rajiv and Mu, Yarong and
            Song, Shuang and Thakkar, Om and Thakurta, Abhradeep and Zheng, Xinyi},
  journal = {Proceedings on Privacy Enhancing Technologies},
  volume = {2025},
  number = {2},
  pages = {607--628},
  year = {2025},
}""",
    "de2022unlocking": """@misc{de2022unlocking,
  title = {Unlocking High-Accuracy Differentially Private Image Classification through Scale},
  author = {De, Soham and Berrada, Leonard and Hayes, Jamie and Smith, Samuel L. and Balle, Borja},
  eprint = {2204.13650},
  archivePrefix = {arXiv},
  year = {2022},
}""",
    "karras2024analyzing": """@inproceedings{karras2024analyzing,
  title = {Analyzing and Improving the Training Dynamics of Diffusion Models},
  author = {Karras, Tero and Aittala, Miika and Lehtinen, Jaakko and Hellsten, Janne and
            Aila, Timo and Laine, Samuli},
  booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2024},
}""",
    "guo2024differential": """@misc{guo2024differential,
  title = {Differential Privacy Meets Weight Decay: A New Optimization Approach for Deep Learning},
  author = {Guo, Songjie},
  howpublished = {STAT3799 report, The University of Hong Kong, supervised by Yuan Cao},
  year = {2024},
}""",
}


def citation(plan: Plan, *others: object) -> None:
    """Print the BibTeX entries of the methods that a run uses.

    Args:
        plan: the run; its mechanism and its account are always cited.
        *others: what the plan does not know: the optimizer, averages of weights or outputs.

    Examples:
        >>> from steppe.points import SAT
        >>> plan = Plan(delta=1e-5, noise_multiplier=1.0, batch_size=64, steps=9, point=SAT(0.03))
        >>> citation(plan)
        @inproceedings{abadi2016deep,
        ...
        @inproceedings{park2023differentially,
        ...
    """
    print(bibtex(plan, *others))


def bibtex(plan: Plan, *others: object) -> str:
    """The entries that `citation` prints, each once, in the order of the places."""
    return "\n\n".join(_ENTRIES[key] for key in dict.fromkeys(_keys(plan, others)))


def bibtex_of(methods: Iterable[str]) -> str:
    """The entries of methods by the names of their classes, after those of every private run.

    Args:
        methods: such as "SAT" or "EMA".

    Returns:
        The entries, each once.

    Examples:
        >>> bibtex_of(["SAT"]).count("@inproceedings{park2023differentially")
        1
    """
    keys = list(_ALWAYS)
    for name in methods:
        listed = tuple(_BY_CLASS)
        keys += _BY_CLASS[validation.one_of("methods", name, listed, "use the name of the class")]
    return "\n\n".join(_ENTRIES[key] for key in dict.fromkeys(keys))


def _keys(plan: Plan, others: tuple[object, ...]) -> Iterator[str]:
    yield from _ALWAYS
    yield from _of(plan.sampling)
    yield from _of(plan.point)
    if plan.l2:
        yield from _L2
    if plan.views > 1:
        yield from _VIEWS
    yield from _of(plan.clip)
    yield from _of(plan.noise)
    for other in others:
        yield from _of(other)


def _of(method: object) -> Iterator[str]:
    for kind in (method if isinstance(method, type) else type(method)).__mro__:
        yield from _BY_CLASS.get(kind.__name__, ())
