"""The objectives of training, a page each: settings, shapes, special tokens, examples,
loss, metrics.

A page is an ``Objective`` (core/config/objective.py says what one may define) and is known by its line
here; one in a file of your own by ``config.member(Objective)``. Reading a page does not import
torch: what computes imports it.
"""

from ...core.config.objective import Objective as Objective
from ...core.training.causal import Causal as Causal
from .classify import Classify as Classify
from .contrast import Contrast as Contrast
from .distill import Distill as Distill
from .features import Features as Features
from .masked import Masked as Masked
from .preference import Preference as Preference
from .prefix import Prefix as Prefix
from .reward import Reward as Reward
from .rewarded import Rewarded as Rewarded
from .seq2seq import Seq2Seq as Seq2Seq
from .sft import Chat as Chat
from .span import Span as Span
from .tag import Tag as Tag
