"""The link over Flower to the members of a run."""

import logging
from collections.abc import Mapping

from partwise.federation.protocol.launch import forgotten
from partwise.federation.protocol.nodes import AT_WORK, Failure
from partwise.federation.transport import link

log = logging.getLogger(__name__)


class OverFlower:
    """The link as a run's members know it."""

    def __init__(self, flower: link.FlowerLink):
        self.flower = flower

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Failure]:
        """Return what each node answers, or why it does not."""
        answers = self.flower.ask(messages, timeout, lambda heard: any(map(forgotten, heard.values())))
        for silo in self.flower.late():
            log.warning("%s answered when nobody waited for it any more", silo)
        at_work = {silo: AT_WORK for silo, each in answers.items() if each is link.STILL_WORKING}
        result = {silo: Failure(each.error) if each.error else each.content for silo, each in answers.items()} | at_work
        return {silo: result.get(silo, Failure("not online")) for silo in messages}
