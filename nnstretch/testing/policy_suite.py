"""Tests that every scheduling policy passes.

Inherit the suite and give it its fixtures:

    class TestMine(PolicySuite):
        @pytest.fixture
        def make_policy(self): return lambda processors, times_us: Mine(processors)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.protocols import Choice, Policy, ProcessorState
from nnstretch.schedule.event_loop import run_tasks
from nnstretch.schedule.executors.threads import ThreadExecutor
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
from nnstretch.soc import Processor
from nnstretch.task import Task, TaskTimes
from nnstretch.task_graph import TaskGraph
from nnstretch.testing.strategies import platforms, task_graphs, task_times
from nnstretch.trace import Trace

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
MakePolicy = Callable[[tuple[Processor, ...], TaskTimes], Policy]
"""Makes a policy for the processors of a chip and the predicted times of all tasks on them."""


class CheckedPolicy:
    """Policy whose choices are checked against what it could choose from."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: dict[str, Task] = {}

    def add(self, task: Task, /) -> None:
        """Tell the policy of a task."""
        self._waiting[task.name] = task
        self._policy.add(task)

    def withdraw(self, task: Task, /) -> None:
        """Take a task back from the policy."""
        del self._waiting[task.name]
        self._policy.withdraw(task)

    def pick(self, now_us: float, processors: Sequence[ProcessorState], /) -> Choice | None:
        """Return the policy's choice, which must be of waiting tasks and open processors."""
        choice = self._policy.pick(now_us, processors)
        if choice is not None:
            task, state = choice
            assert self._waiting.pop(task.name, None) is not None, f"{task.name} does not wait"
            assert state is None or state.open, f"{state.name} is not open"
        return choice


def faults_of(
    trace: Trace, tasks: Sequence[Task], processors: tuple[Processor, ...], times_us: TaskTimes
) -> tuple[str, ...]:
    """Return every way in which a trace is no schedule of the tasks; placed ones may not move."""
    if not tasks:
        return tuple(f"{span.task.name} ran, there are no tasks" for span in trace.spans)
    planned = {task.name: task.processor for task in tasks}
    moved = [
        f"{span.task.name} ran on {span.processor}, its plan says {planned[span.task.name]}"
        for span in trace.spans
        if planned.get(span.task.name) not in (None, span.processor)
    ]
    graph = TaskGraph("drawn", tuple(tasks), processors, times_us)
    return (*moved, *schedule_faults(trace, graph))


def processor_states(
    processors: Sequence[Processor], busy: str | None = None
) -> tuple[ProcessorState, ...]:
    """Return idle processors, one of them with no room for work."""
    return tuple(
        ProcessorState(processor, number, processor.name != busy)
        for number, processor in enumerate(processors)
    )


class PolicySuite:
    """Tests over one fixture: `make_policy`, from processors and task times to a policy."""

    @SETTINGS
    @given(data=st.data())
    def test_any_dag_on_any_platform_becomes_a_valid_and_repeatable_schedule(
        self, make_policy: MakePolicy, data: st.DataObject
    ) -> None:
        """Check schedules on the virtual clock, in which something always runs."""
        processors = data.draw(platforms())
        tasks = data.draw(task_graphs(processors))
        times_us = data.draw(task_times(tasks, processors))
        traces = []
        for _ in range(2):
            policy = CheckedPolicy(make_policy(processors, times_us))
            traces.append(run_tasks(tasks, policy, VirtualExecutor(processors, times_us)))
        assert traces[0] == traces[1]
        assert faults_of(traces[0], tasks, processors, times_us) == ()
        total_us = sum(span.duration_us for span in traces[0].spans)
        assert traces[0].makespan_us <= total_us

    @settings(SETTINGS, max_examples=20)
    @given(data=st.data())
    def test_real_threads_make_a_schedule_of_any_dag(
        self, make_policy: MakePolicy, data: st.DataObject
    ) -> None:
        """Check schedules on threads, whose times are none that were predicted."""
        processors = data.draw(platforms())
        tasks = data.draw(task_graphs(processors))
        times_us = data.draw(task_times(tasks, processors))
        ended: list[str] = []
        with ThreadExecutor(processors, lambda task: ended.append(task.name)) as threads:
            policy = CheckedPolicy(make_policy(processors, times_us))
            trace = run_tasks(tasks, policy, threads)
        assert faults_of(trace, tasks, processors, times_us) == ()
        assert sorted(ended) == sorted(task.name for task in tasks)

    @SETTINGS
    @given(data=st.data())
    def test_a_policy_waits_where_only_a_busy_processor_could_run(
        self, make_policy: MakePolicy, data: st.DataObject
    ) -> None:
        """Check that a placed task waits for its processor instead of taking a free one."""
        processors = data.draw(platforms())
        busy = data.draw(st.sampled_from(processors))
        task = Task("t", "g", processor=busy.name)
        times_us = {(task.work, processor.name): 1.0 for processor in processors}
        states = processor_states(processors, busy.name)
        policy = make_policy(processors, times_us)
        policy.add(task)
        assert policy.pick(0.0, states) is None
        states[processors.index(busy)].open = True
        assert policy.pick(0.0, states) == (task, states[processors.index(busy)])

    @SETTINGS
    @given(data=st.data())
    def test_a_task_that_was_withdrawn_is_not_chosen_and_one_that_comes_back_is(
        self, make_policy: MakePolicy, data: st.DataObject
    ) -> None:
        """Check that a policy forgets what is not wanted, and what it has chosen."""
        processors = data.draw(platforms())
        place = data.draw(st.sampled_from(processors)).name
        tasks = [Task(f"t{number}", "g", processor=place) for number in range(3)]
        times_us = {(task.work, each.name): 1.0 for task, each in product(tasks, processors)}
        policy = make_policy(processors, times_us)
        for task in tasks:
            policy.add(task)
        policy.withdraw(tasks[1])
        states = processor_states(processors)
        picked = [policy.pick(0.0, states), policy.pick(0.0, states)]
        assert {choice[0].name for choice in picked if choice is not None} == {"t0", "t2"}
        assert policy.pick(0.0, states) is None
        policy.add(tasks[1])
        assert policy.pick(0.0, states) is not None


class PlacingPolicySuite(PolicySuite):
    """Tests of a policy that also chooses processors for tasks that no plan has placed."""

    @SETTINGS
    @given(data=st.data())
    def test_tasks_without_a_place_are_run_where_their_time_is_known(
        self, make_policy: MakePolicy, data: st.DataObject
    ) -> None:
        """Check schedules of unplaced tasks, some of which one processor alone can run."""
        processors = data.draw(platforms())
        tasks = data.draw(task_graphs(processors, placed=False))
        times_us = dict(data.draw(task_times(tasks, processors)))
        for task in tasks:
            for processor in processors[1:]:
                if data.draw(st.booleans()):
                    del times_us[task.work, processor.name]
        policy = CheckedPolicy(make_policy(processors, times_us))
        trace = run_tasks(tasks, policy, VirtualExecutor(processors, times_us))
        assert faults_of(trace, tasks, processors, times_us) == ()
