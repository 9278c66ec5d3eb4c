"""Checks a database against the invariants, and names every violation. Reads only.

Two accounts of the log are held against the stored rows. One is a replay: ``step`` folds the log from the plan,
``records.write`` writes what it gives into an empty database, and all tables are compared, column by column
(``replay.py``, which lists what no log determines). The other uses neither, so that a bug of theirs cannot hide itself.
All rows are read in one transaction, so a coordinator may run meanwhile.

========  ========================================================================================================
1         a device counts at most once per round and per version, and no update counts in two rounds
2         the checkpoints of a run form a line
3         a commit names exactly the updates in the log; each update of an abandoned round, or attempt, has its
          refusal recorded; a round without any was advanced by its owner, and the audit says so
4         a round ended once: its row, its checkpoint and the log agree, also about when it opened and ended, in which
          attempt, and about its numbers; only the last round may be open
5         every blob that the rows need is there, with its bytes: checkpoints, the lists of who waited, updates that
          are not yet counted or under retention, the server optimizer's states that may be read again
8         the log has no gap
10        updates that are still stored give the committed checkpoint, and the server optimizer's state, again
evidence  a checkpoint was made of the parent, the server optimizer's state and the counted updates that stand here, as
          the commit's digests of the bytes that were read say; of a secure round, of its header, survivors and sum
quorum    a round was committed with at least its quorum, of devices that were selected; a buffered one with its goal
deadline  nothing ended before its time by the plan: a selection, a round, an exchange, a lease; no assignment lasts
          longer, and no round goes on taking messages for minutes after its deadline
lease     fences only rise, and a datacenter round was committed under the last one that was granted, with its bytes
claims    a device has an assignment in one round, which is open and for which it was selected; in a round that waits
          for updates each selected device has one that has neither sent its update nor left; of buffered rounds: draws
          took who was free, nobody has two places, and each place has its assignment
score     the scores are those that devices and evaluators sent last
plan      the plan is the one of the digest to which the devices agreed
ledger    the privacy ledger holds each sum that is in a model, and of each device at least what it has counted for;
          budgets and owners' words are those of the audit
log       each event can be read, follows from the state before it, and changes something
rows      all tables of the run hold the rows that the log gives
snapshot  the snapshot is of the round under way; that it is the state after its event is one of the rows
draw      each cohort is the draw from the list of who waited, by seed and round
fleet     who was selected is registered, and who had a lease is registered
identity  certificates are of their holder, key and class, and signed by an authority whose key was given; revocation
          lists are as their bytes say, and none that the audit names is gone; who registered is there, with its cap or
          its label; API keys have the grant that the audit has, and who was revoked stays so; each session has its
          login; nobody waits with more examples than its cap; a node id is that of its device
chain     each event, each refusal, and each message, reply and end of a Flower run continues its chain of links, and
          the chains have the links that somebody outside has written down
audit     each row of the audit has its number, continues the chain and is signed by a key that was given; the audit has
          the heads that somebody outside has written down
orphan    no row names a run that is not there, and the name of each run is taken
flower    of Flower runs: a reply came in its message's time and counts once, the contents that rows name are there with
          their bytes, a message is to the node of its device, and nothing came after the end of its run
========  ========================================================================================================
"""

from __future__ import annotations

from coordinator.store.chain import AuditHead as AuditHead
from coordinator.store.chain import BadAuditHead as BadAuditHead
from coordinator.store.chain import is_audit_head as is_audit_head
from coordinator.verify.audit import AuditWitness as AuditWitness
from coordinator.verify.chains import BadHead as BadHead
from coordinator.verify.chains import Head as Head
from coordinator.verify.chains import of_history as of_history
from coordinator.verify.chains import parsed as parsed
from coordinator.verify.database import verify as verify
from coordinator.verify.violation import CannotVerify as CannotVerify
from coordinator.verify.violation import Violation as Violation
