"""How flat is a solution? Curvature, landscapes, paths, rays, noise; numbers and figures.

Every measure reads records. Use public data: what a measure reveals about private records is not
covered by the guarantee of the training. Imports `gradients`, `utils`, `errors`.
"""

from steppe.flatness.directions import Cosines as Cosines
from steppe.flatness.directions import CosineTrack as CosineTrack
from steppe.flatness.directions import cosine_figure as cosine_figure
from steppe.flatness.eigenvalues import Eigenvalues as Eigenvalues
from steppe.flatness.eigenvalues import eigenvalue_figure as eigenvalue_figure
from steppe.flatness.eigenvalues import top_eigenvalues as top_eigenvalues
from steppe.flatness.figures import new_figure as new_figure
from steppe.flatness.gradient_norms import GradientNorms as GradientNorms
from steppe.flatness.gradient_norms import gradient_norm_histogram as gradient_norm_histogram
from steppe.flatness.gradient_norms import norms_figure as norms_figure
from steppe.flatness.gradient_norms import record_gradient_norms as record_gradient_norms
from steppe.flatness.interpolation import Path as Path
from steppe.flatness.interpolation import interpolate as interpolate
from steppe.flatness.interpolation import path_figure as path_figure
from steppe.flatness.landscape import LossLine as LossLine
from steppe.flatness.landscape import Plane as Plane
from steppe.flatness.landscape import filter_normalised_direction as filter_normalised_direction
from steppe.flatness.landscape import line_figure as line_figure
from steppe.flatness.landscape import loss_line as loss_line
from steppe.flatness.landscape import loss_plane as loss_plane
from steppe.flatness.landscape import plane_figure as plane_figure
from steppe.flatness.rays import Rays as Rays
from steppe.flatness.rays import percent_gain as percent_gain
from steppe.flatness.rays import random_rays as random_rays
from steppe.flatness.rays import rays_figure as rays_figure
from steppe.flatness.robustness import RobustAccuracy as RobustAccuracy
from steppe.flatness.robustness import robust_accuracy as robust_accuracy
from steppe.flatness.robustness import robustness_figure as robustness_figure
from steppe.flatness.spectrum import SpectralDensity as SpectralDensity
from steppe.flatness.spectrum import density_figure as density_figure
from steppe.flatness.spectrum import spectral_density as spectral_density
from steppe.flatness.surface import MeanScores as MeanScores
from steppe.flatness.surface import Progress as Progress
from steppe.flatness.surface import Surface as Surface
from steppe.flatness.trace import HessianTrace as HessianTrace
from steppe.flatness.trace import hessian_trace as hessian_trace
from steppe.flatness.trace import trace_figure as trace_figure
from steppe.flatness.two_minima import Descent as Descent
from steppe.flatness.two_minima import TwoMinima as TwoMinima
from steppe.flatness.two_minima import descent_figure as descent_figure
from steppe.flatness.two_minima import noisy_descent as noisy_descent
from steppe.flatness.two_minima import two_minima_figure as two_minima_figure
