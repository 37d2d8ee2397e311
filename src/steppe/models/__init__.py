"""The networks of the papers: `create("dpnas-mnist")` by name, or each by its constructor.

Imports `utils`, `errors`.
"""

from steppe.models.catalogue import create as create
from steppe.models.catalogue import names as names
from steppe.models.catalogue import needs as needs
from steppe.models.catalogue import parameters as parameters
from steppe.models.catalogue import sizes as sizes
from steppe.models.dpnas import dpnas_cifar as dpnas_cifar
from steppe.models.dpnas import dpnas_fmnist as dpnas_fmnist
from steppe.models.dpnas import dpnas_mnist as dpnas_mnist
from steppe.models.efficientnet_lite import EfficientNetLite0 as EfficientNetLite0
from steppe.models.front_end import FixedFrontEnd as FixedFrontEnd
from steppe.models.front_end import FrontEnd as FrontEnd
from steppe.models.front_end import named_in as named_in
from steppe.models.front_end import stored_constants as stored_constants
from steppe.models.front_end import trained_part as trained_part
from steppe.models.frozen_batch_norm import FrozenBatchNorm as FrozenBatchNorm
from steppe.models.head import head_name as head_name
from steppe.models.head import head_of as head_of
from steppe.models.head import set_module as set_module
from steppe.models.patches import Patches as Patches
from steppe.models.patches import PatchesLinear as PatchesLinear
from steppe.models.patches import patches_linear as patches_linear
from steppe.models.patches import takes_patches as takes_patches
from steppe.models.patches.stored_features import features_key as features_key
from steppe.models.patches.stored_features import stored_features as stored_features
from steppe.models.plain_cnn import cnn_opacus_cifar as cnn_opacus_cifar
from steppe.models.plain_cnn import cnn_relu_26k as cnn_relu_26k
from steppe.models.plain_cnn import cnn_selu_cifar as cnn_selu_cifar
from steppe.models.plain_cnn import cnn_tanh_26k as cnn_tanh_26k
from steppe.models.plain_cnn import cnn_tanh_26k_ftrl as cnn_tanh_26k_ftrl
from steppe.models.plain_cnn import cnn_tanh_cifar as cnn_tanh_cifar
from steppe.models.plain_cnn import cnn_tanh_cifar_ftrl as cnn_tanh_cifar_ftrl
from steppe.models.regression import linear_regression as linear_regression
from steppe.models.regression import logistic_regression as logistic_regression
from steppe.models.resnet import gn_resnet10 as gn_resnet10
from steppe.models.resnet import gn_resnet18 as gn_resnet18
from steppe.models.resnet import gn_resnet50 as gn_resnet50
from steppe.models.resnet20 import resnet20 as resnet20
from steppe.models.scattering import Scattering as Scattering
from steppe.models.scattering import ScatteringLinear as ScatteringLinear
from steppe.models.scattering import scattering_linear as scattering_linear
from steppe.models.tables import embedding_mlp as embedding_mlp
from steppe.models.tables import mlp as mlp
from steppe.models.vision_transformer import VisionTransformer as VisionTransformer
from steppe.models.wide_resnet import wrn_16_4 as wrn_16_4
from steppe.models.wide_resnet import wrn_28_10 as wrn_28_10
