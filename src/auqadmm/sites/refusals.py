"""What goes wrong between sites and a coordinator, by class; every text is a sentence that may be shown."""

from __future__ import annotations

from auqadmm.errors import AuqadmmError


class SitesError(AuqadmmError):
    """The coordinator cannot go on, or a site cannot: the message says who and why."""


class Declined(SitesError):
    """Raised at a site by whoever answers: this sentence, and nothing else of an error, is told to the coordinator."""


class Refusal(SitesError):
    """A message that is not accepted. `status`: what the other side is told by HTTP."""

    status = 403


class Malformed(Refusal):
    """Not a message: headers are missing, numbers are none, bytes are not those that were signed."""

    status = 400


class TooLarge(Refusal):
    """More bytes than are read here."""

    status = 413


class Stranger(Refusal):
    """A name that is not on the list."""


class Forged(Refusal):
    """The signature is not that of the key on the list."""


class Replayed(Refusal):
    """Seen before, or overtaken by a later one."""


class WrongClock(Refusal):
    """Signed too long ago, or in the future."""


class NotJoined(Refusal):
    """A site that has not joined this coordinator since it was started."""

    status = 409


class Displaced(Refusal):
    """Another process has joined as this site since."""

    status = 410
