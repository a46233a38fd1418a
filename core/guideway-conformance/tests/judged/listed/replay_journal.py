"""Mistakes in `judged.plugins.replay_journal`: what a replay needs, hooks."""

from judged.mutant import Mutant

MUTANTS = (
    Mutant(
        "journal-error-without-words",
        "replay_journal.ReplayJournal",
        '                record["error"] = f"{type(error).__name__}: {error}"\n',
        '                record["error"] = f"{type(error).__name__}: {error.args[0]}"\n',
        (
            "contracts/hooks.md: An observer hears of a failure of any type, which the end follows, "
            "without raising or changing the request."
        ),
        first="hooks.hears_of_every_failure",
    ),
    Mutant(
        "journal-only-what-cannot-be-opened",
        "replay_journal.ReplayJournal",
        "    except (OSError, ValueError, RecursionError) as error:\n",
        "    except OSError as error:\n",
        (
            "contracts/hooks.md: A validator that cannot read the file that its environment variable "
            "names fails closed: it refuses every request with InvalidRequest."
        ),
        first="hooks.what_cannot_be_read_refuses",
    ),
    Mutant(
        "journal-settings-in-the-observer",
        "replay_journal.ReplayJournal",
        "        except Exception as error:  # a full disk ends no request\n",
        "        except OSError as error:  # a full disk ends no request\n",
        ("contracts/hooks.md: An observer hears of any end without raising and without changing request or result."),
        reason=("Files went away for validators alone; now they do for observers, from one moment to the next."),
        now="hooks.an_observer_goes_on_without_its_files",
    ),
    Mutant(
        "journal-told-in-a-thread",
        "replay_journal.ReplayJournal",
        ("    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:\n"),
        (
            "    def guideway_request_finished(self, request: Request, result: GenerationResult) -> "
            "None:\n"
            "        threading.Thread(\n"
            "            target=self._keep, args=(request, result), daemon=True\n"
            "        ).start()  # no request waits for the disk\n"
            "\n"
            "    def _keep(self, request: Request, result: GenerationResult) -> None:\n"
        ),
        (
            "contracts/hooks.md: An observer has heard when it returns: it is an ordinary function, "
            "for nobody awaits what it returns."
        ),
        reason=("Threads that an observer starts were not looked at; they begin late now, and are to have ended."),
        now="hooks.an_observer_has_heard",
    ),
    Mutant(
        "journal-joined-reports",
        "replay_journal.ReplayJournal",
        "            return\n",
        (
            "            return\n"
            "        for output in result.outputs:  # so that a line of a report's own log can be "
            "joined with this one\n"
            "            for report in output.reports.values():\n"
            '                report["request_id"] = request.request_id\n'
        ),
        ("contracts/hooks.md: An observer hears of any end without raising and without changing request or result."),
        reason="No result had reports of modifiers; now results say all that they can.",
        now="hooks.hears_of_every_end",
    ),
    Mutant(
        "journal-prompt-has-a-length",
        "replay_journal.ReplayJournal",
        (
            '            raise InvalidRequest(f"task {submission.task!r} is not journaled, so it is '
            'not served", field="task")\n'
        ),
        (
            '            raise InvalidRequest(f"task {submission.task!r} is not journaled, so it is '
            'not served", field="task")\n'
            "        if len(submission.prompt) > 1_000_000:\n"
            '            raise InvalidRequest("the journal has no room for a prompt of this length", '
            'field="prompt")\n'
        ),
        (
            "writing/hooks.md: Handle every kind of request: [...] without text (the `prompt` of a "
            "request is None for chats, that of a submission where the host knows token ids alone)"
        ),
        first="hooks.passes_or_refuses",
    ),
)
