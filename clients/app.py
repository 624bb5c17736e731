"""The ClientApp, which replies for many clients at once."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedclust.clients.node import Answers as Answers, KeptByNode, Node, Work
from fedclust.clients.release import Release, charge, check_question
from fedclust.clients.sites import OwnSites, own_sites
from fedclust.data.dataset import content_digest
from fedclust.grids.client_grid import is_bundle, keeps, pack, unpack, wants_all_rows
from fedclust.grids.joined import is_joined, joined, separated
from fedclust.messages.codec import SERVER, Question, decode, encode
from fedclust.messages.description import Hosted, InRun
from fedclust.messages.evaluation import EvaluateQuestion
from fedclust.messages.training import Instruction, read_sent
from fedclust.settings.allowed import EVERYTHING, allowed_here
from fedclust.support.reasons import Sendable, discreet, one_line, reason_of
from fedclust.training.cohort import num_steps

app = ClientApp()

Respond = Callable[[Message, Context], Message]


def careful(respond: Respond) -> Respond:
    """Withhold the texts of errors where the node is not the user's own process."""

    def guarded(message: Message, context: Context) -> Message:
        config = context.node_config
        private = "data" in config or allowed_here(config).strip() != EVERYTHING
        with discreet(private):
            try:
                return respond(message, context)
            except Exception as error:
                if not private or isinstance(error, Sendable):
                    raise
                reason = reason_of(error, f"a message of type {message.metadata.message_type}")
            raise Sendable(reason)

    return guarded


WORK: dict[str, Work] = {}
"""What answers each kind of question."""


def answers(question: type[Question]) -> Callable[[Work], Work]:
    """Register a function for a question.

    A message from a :class:`~fedclust.federation.ClientGrid` is a bundle for some of the node's clients. Any
    other message is for the node's only client, so that the app also works with a plain Flower strategy; the
    reply is an error if that client fails, or if the node hosts several.
    """
    of_a_round = question in (Instruction, EvaluateQuestion)

    def read(content: RecordDict) -> Any:
        return read_sent(question, content) if of_a_round else decode(question, content, SERVER)

    def register(work: Work) -> Work:
        settled = WORK[question.kind] = _settled(work)

        @careful
        def respond(message: Message, context: Context) -> Message:
            content = separated(message.content)
            node, bundle = Node.of(context), is_bundle(content)
            check_question(node, question.kind)
            if wants_all_rows(content):
                node = node.without_holdout()
            kept = KeptByNode(context, node.clients)
            node = replace(node, keeps=keeps(content), kept=kept)
            if not bundle and len(node.clients) != 1:
                raise Sendable(
                    f"a node of several clients must be sent bundles, this one hosts {list(node.clients)}"
                )
            contents = unpack(content)[0] if bundle else {node.clients[0]: content}
            foreign = contents.keys() - set(node.clients)
            mine = {client: each for client, each in contents.items() if client not in foreign}
            made, failed = _answered(settled, node, mine, read)
            kept.save()
            hosts = list(node.clients) if foreign else []
            errors = failed | {
                client: f"client {client} must be hosted by this node, it hosts {hosts}" for client in foreign
            }
            if bundle:
                answer = pack(made, errors)
                return Message(joined(answer) if is_joined(message.content) else answer, reply_to=message)
            for error in errors.values():
                raise Sendable(error)
            return Message(*made.values(), reply_to=message)

        if of_a_round:
            (app.train() if question is Instruction else app.evaluate())(respond)
        else:
            app.query(question.kind.removeprefix("query."))(respond)
        return work

    return register


def _settled(work: Work) -> Work:
    """Return an answer or an error for each client that is asked, whatever a function returns."""

    @wraps(work)
    def settled(node: Node, asked: Mapping[int, Any]) -> Answers:
        replies, errors = work(node, asked)
        failed = {
            client: one_line(str(errors.get(client, "the node's reply lacks this client")))
            for client in asked
            if client in errors or client not in replies
        }
        return {client: replies[client] for client in asked if client not in failed}, failed

    return settled


def _answered(
    work: Work, node: Node, contents: Mapping[int, RecordDict], read: Callable[[RecordDict], Any]
) -> tuple[dict[int, RecordDict], dict[int, str]]:
    """Answer contents; read a shared content once, and write a shared answer once."""
    distinct = {id(content): content for content in contents.values()}
    questions = {each: read(content) for each, content in distinct.items()}
    charge(node, [questions[id(content)] for content in contents.values()])
    replies, failed = work(node, {client: questions[id(content)] for client, content in contents.items()})
    shared: dict[int, RecordDict] = {}
    written: dict[int, RecordDict] = {}
    errors, release = dict(failed), Release(node)
    released: dict[int, Any] = {}
    for client, answer in replies.items():
        try:
            each = released[client] = release.of(client, questions[id(contents[client])], answer)
            if id(each) not in written:
                written[id(each)] = encode(each, shared)
        # One that cannot be written, or must not leave, is its client's error and no other's.
        except Exception as error:
            errors[client] = reason_of(error)
    return {client: written[id(each)] for client, each in released.items() if client not in errors}, errors


@app.query("clients")
@careful
def hosted(message: Message, context: Context) -> Message:
    """Return the clients that this node hosts: names if it has its own data; otherwise ids, and a digest.

    A node that may train any client adds each client's steps.
    """
    if (sites := own_sites(context)) is not None:
        return Message(encode(sites.registered()), reply_to=message)
    node = Node.of(context)
    name = str(context.node_config.get("name", ""))[:200]
    steps: tuple[int, ...] = ()
    if context.node_config.get("shared"):  # by which the server divides a round's clients
        examples = np.array([max(1, len(node.data.train[client])) for client in node.clients])
        steps = tuple(num_steps(examples, node.trainer.training).tolist())
    digest = f"{content_digest(node.data)} {node.data.embedded_by}".strip()[:200]
    hosted = Hosted(node.clients, node.data.num_clients, name, digest, steps)
    return Message(encode(hosted), reply_to=message)


@app.query("statement")
@careful
def state(message: Message, context: Context) -> Message:
    """Describe each site's data as far as the common encoding needs it."""
    asked = decode(InRun, message.content, SERVER)
    return Message(encode(_sites(context).stated(asked.key)), reply_to=message)


@app.query("agreement")
@careful
def agree(message: Message, context: Context) -> Message:
    """Encode each site's rows as agreed."""
    return Message(encode(_sites(context).agree(context, message.content)), reply_to=message)


def _sites(context: Context) -> OwnSites:
    sites = own_sites(context)
    if sites is None:
        raise Sendable("partition must be own to ask a node for its own data")
    return sites
