"""`teal pretrain-hedge`: a hedge for any network."""

from __future__ import annotations

from tqdm import tqdm

from teal.config import PretrainHedgeConfig
from teal.learning.pretrain_hedge import HedgeTrainer
from teal.runtime.storage import check_out_folder
from teal.studies.files import RESUME_HINT
from teal.studies.stored_settings import save_settings
from teal.studies.train import FILES


def run_pretrain_hedge(config: PretrainHedgeConfig) -> HedgeTrainer:
    """Compute the histories that are missing and train, from the start or from the state in OUT.

    Raises:
        InputError: a fault in the settings, or an earlier run in OUT that must not be replaced.
    """
    if not config.resume:
        check_out_folder(config.out, FILES, overwrite=config.overwrite, hint=RESUME_HINT)
    trainer = HedgeTrainer(config)
    if config.resume:
        trainer.resume(config.out)
    with tqdm(total=config.histories, desc="histories", unit="history") as bar:
        trainer.prepare(config.out, lambda done, _: bar.update(done - bar.n))
    save_settings(config)
    trainer.train(config.out)
    return trainer
