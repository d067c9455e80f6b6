"""Transactions of a cluster: who is asked for them."""

import asyncio

from tests.client.kafka_broker import Broker

from braidlog.client.drivers.transactions import ListedTransaction, TransactionInfo
from braidlog.client.session import connect
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import cluster as c
from braidlog.wire.kafka.messages import transactions as t

KNOWN = TransactionInfo("tx", "Ongoing", 7, 3, 60_000, None, ())


def _listed(name: str) -> t.ListTransactionsResponse:
    return t.ListTransactionsResponse(transaction_states=[t.ListTransactionsResponseTransaction(name, 7, "Ongoing")])


def test_each_broker_is_asked_for_those_that_it_coordinates() -> None:
    async def main() -> None:
        async with (
            Broker({t.ListTransactionsRequest: _listed("b")}) as one,
            Broker({t.ListTransactionsRequest: _listed("a")}) as two,
        ):
            nodes = [c.DescribeClusterResponseBroker(at, "127.0.0.1", each.port) for at, each in enumerate((one, two))]
            one.script[c.DescribeClusterRequest] = c.DescribeClusterResponse(brokers=nodes)
            async with connect(f"kafka://127.0.0.1:{one.port}") as client:
                found = await client.admin.list_transactions(open_only=True)
        assert found == [ListedTransaction("a", "Ongoing", 7), ListedTransaction("b", "Ongoing", 7)]
        assert [each.state_filters for each in two.heard(t.ListTransactionsRequest)] == [["Ongoing"]]

    asyncio.run(main())


def test_an_abort_goes_to_the_coordinator_and_looks_for_it_again_when_it_has_moved() -> None:
    async def main() -> None:
        moved = t.InitProducerIdResponse(error_code=E.NOT_COORDINATOR)
        async with Broker({t.InitProducerIdRequest: moved}) as old, Broker() as new:
            places = [
                c.FindCoordinatorResponse(
                    coordinators=[c.FindCoordinatorResponseCoordinator("tx", 1, "127.0.0.1", each.port)]
                )
                for each in (old, new)
            ]
            old.script[c.FindCoordinatorRequest] = [*places]
            async with connect(f"kafka://127.0.0.1:{old.port}") as client:
                await client.admin.abort_transaction(KNOWN)
        assert [each.key_type for each in old.heard(c.FindCoordinatorRequest)] == [1, 1]
        for broker in (old, new):
            (asked,) = broker.heard(t.InitProducerIdRequest)
            assert (asked.producer_id, asked.producer_epoch, asked.transaction_timeout_ms) == (7, 3, 60_000)

    asyncio.run(main())
