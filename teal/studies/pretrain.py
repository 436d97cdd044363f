"""`teal pretrain`: a PriceGNN for any network."""

from __future__ import annotations

from teal.config import PretrainConfig
from teal.learning.pretrain import Pretrainer
from teal.runtime.storage import check_out_folder
from teal.studies.files import RESUME_HINT
from teal.studies.stored_settings import save_settings
from teal.studies.train import FILES


def run_pretrain(config: PretrainConfig) -> Pretrainer:
    """Train, from the start or from the state in OUT.

    Raises:
        InputError: a fault in the settings, or an earlier run in OUT that must not be replaced.
    """
    if not config.resume:
        check_out_folder(config.out, FILES, overwrite=config.overwrite, hint=RESUME_HINT)
    trainer = Pretrainer(config)
    if config.resume:
        trainer.resume(config.out)
    save_settings(config)
    trainer.train(config.out)
    return trainer
