"""The catalogue: one file per lineage, one function per algorithm."""

from . import adagrad, clipping, finite_sum, kalman, mars, muon, sgd, sign, spider, storm
from .normalized_storm import agnostic_storm, halving_storm, normalized_storm_anytime
from .normalized_storm import from_plan as from_plan
from .normalized_storm import normalized_storm as normalized_storm
from .sgd import momentum_nsgd as momentum_nsgd

_MAKERS = (
    *(normalized_storm, normalized_storm_anytime, agnostic_storm, halving_storm, momentum_nsgd),
    *(sgd.sgd, sgd.averaged_sgd, sgd.schedule_free_sgd, sgd.momentum_sgd),
    *(sgd.normalized_sgd, sgd.nigt, sgd.agnostic_nsgd),
    *(clipping.clipped_sgd, clipping.soft_clipped_sgd, clipping.mixed_clipping, clipping.clipped_storm),
    *(sign.generalized_signsgd, sign.sign_storm, sign.generalized_signstorm),
    *(adagrad.adagrad_norm, adagrad.super_adam),
    *(storm.storm, storm.storm_plus, storm.meta_storm, storm.meta_storm_sg, storm.meta_storm_na),
    *(storm.hybrid_sarah_sgd, storm.measured_storm),
    kalman.kalman_storm,
    *(spider.spider_1, spider.spider_2, spider.l0l1_spider, spider.symmetric_spider, spider.beta_gd, spider.page),
    *(finite_sum.svrg, finite_sum.saga, finite_sum.sarah),
    *(mars.mars, muon.muon, muon.muon_mvr, muon.limuon, muon.scion),
)
CATALOGUE = {make.__name__: make for make in _MAKERS}
# Those whose steps answer to an observer. Without one they are another algorithm, and have no place beside the others.
LISTENING = frozenset({"halving_storm"})
