"""docs/admin/security.md: every statement has a test that shows it, or says that there is none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs/admin/security.md").read_text()
_FILE = re.compile(r"`([a-z0-9_/]+/test_[a-z0-9_]+\.py)`")

# By file: words of a statement, the test that shows it, and words of that test which say that it does so.
PROOFS = {
    "test_slurm/test_hook_trust.py": [
        ("writes no hook while a file", "test_a_file_or_directory_that_a_neighbour_may_change_is_named", "raises"),
    ],
    "test_launcher/test_shared_runs_folder.py": [
        (
            "the batch script refuses a folder",
            "test_the_batch_script_refuses_what_a_stranger_may_have_swapped",
            "assert",
        ),
        ("A group of the user's own", "test_a_private_group_and_a_sticky_parent_are_no_reason_to_refuse", "1777"),
        ("`<runs>/<job>`", "test_all_that_a_submission_writes_is_its_users_alone", "assert"),
        ("No pickle is written or read", "test_a_planted_pickle_is_not_read", "assert"),
    ],
    "flows/test_planted_namespace.py": [
        ("refused at submit and at start", "test_it_is_refused_when_the_job_starts", "belongs to uid"),
        ("a link that another user made", "test_a_link_in_place_of_the_folder_is_refused", "ln -s"),
        (
            "written through the directory that was checked",
            "test_what_replaces_the_folder_of_a_running_job_is_never_written_to",
            "communicate",
        ),
    ],
    "test_ckpt/test_faulty_storage.py": [
        (
            "says so before its first save",
            "test_an_empty_folder_planted_by_another_user_is_refused_before_it_is_marked",
            "belongs to uid",
        ),
    ],
    "test_ckpt/test_planted.py": [
        (
            "written through the directory that was checked",
            "test_the_folder_that_was_checked_is_the_one_that_is_written",
            "symlink_to",
        ),
    ],
    "test_ckpt/test_s3.py": [
        ("names its user", "test_the_keys_of_another_user_are_refused", "NamespaceError"),
        (
            "every request of the job names the account",
            "test_every_request_names_the_account_that_should_own_the_bucket",
            "x-amz-expected-bucket-owner",
        ),
    ],
    "test_ckpt/test_hostile_records.py": [
        ("more is refused unread", "test_a_record_that_is_too_long_is_refused_unread", "truncate"),
        (
            "8 million values",
            "test_a_manifest_of_many_values_is_refused_before_they_take_memory",
            "values, expected at most",
        ),
        ("checked before they are used", "test_a_hostile_manifest_is_one_line_of_every_verb", "every_verb"),
        ("checked once", "test_chunks_that_ranks_have_in_common_cost_time_once", "many_rows_of_many_chunks"),
        ("Whatever else is wrong is one line", "test_no_mutation_of_a_manifest_or_record_gets_through", "mutate"),
    ],
    "test_ckpt/test_record.py": [
        ("Numbers are checked", "test_a_hostile_chunk_is_refused", "CorruptError"),
    ],
    "test_ckpt/test_exchange.py": [
        ("refuses every other name", "test_an_import_runs_nothing_of_what_is_in_the_directory", "not mark.exists()"),
    ],
    "test_ckpt/test_hostile_dcp.py": [
        ("only regular files of the directory", "test_no_other_file_is_read", "secret"),
        ("no links", "test_what_is_no_regular_file_is_not_opened", "mkfifo"),
        ("a minute of processor time", "test_a_pickle_that_computes_for_ever_is_ended", "processor time"),
        ("so does memory", "test_an_object_that_takes_the_machines_memory_is_refused", "MemoryError"),
    ],
    "test_lifecycle/test_isolation.py": [
        (
            "pip installs as root only packages whose hashes",
            "test_provisioning_runs_no_planted_module_and_installs_no_package_with_another_hash",
            "DO NOT MATCH THE HASHES",
        ),
        ("HyperPod's parameters", "test_the_parameters_of_another_user_beside_the_script_are_not_taken", "chown"),
        ("needs its SHA-256", "test_a_source_that_nothing_can_be_compared_with_is_refused", "sha256"),
    ],
    "test_slurm/test_hooks_hostile.py": [
        ("believe no name, path or environment", "test_no_input_crashes_a_hook_or_leads_it_elsewhere", "assert"),
    ],
    "test_slurm/test_prolog.py": [
        ("follow no link", "test_what_another_user_planted_is_removed_and_not_followed", "symlink_to"),
        ("`/dev/shm/holdfast-<uid>`", "test_the_jobs_memory_directory_is_its_users_alone", "0o700"),
        ("the prolog removes it", "test_a_user_who_plants_all_the_time_keeps_no_job_from_its_directory", "mkfifo"),
        ("the log names whose files", "test_a_memory_that_users_filled_keeps_no_job_away_which_is_told", "assert"),
    ],
    "test_slurm/test_hooks_leftovers.py": [
        (
            "can neither stop nor slow",
            "test_the_user_can_neither_stop_nor_slow_what_a_hook_does_with_their_rights",
            "refused",
        ),
        (
            "at most 2 s beyond",
            "test_the_next_job_is_prepared_before_the_leftovers_are_removed_which_go_all_the_same",
            "assert",
        ),
    ],
    "test_lifecycle/provision/test_containers.py": [
        ("enroot's below it", "test_a_stranger_neither_plants_nor_reads_what_enroot_keeps", "assert"),
    ],
    "flows/test_another_user.py": [
        (
            "gives nobody a right to read",
            "test_an_administrator_sees_the_job_in_top_and_another_user_does_not",
            "folders that cannot be read",
        ),
        ("sockets, secret, events", "test_another_user_on_the_node_is_shut_out_of_the_job", "assert"),
        (
            "drops the packets of all hosts",
            "test_another_user_on_another_node_does_not_reach_torchs_rendezvous",
            "assert",
        ),
    ],
    "test_launcher/test_channel_hostile.py": [
        (
            "closes the connection",
            "test_hostile_bytes_never_crash_the_server_and_only_the_secret_lets_in",
            "knows_secret",
        ),
        ("count as one host", "test_a_flood_from_many_loopback_addresses_keeps_no_runner_out", "source_address"),
        (
            "kept for one second",
            "test_where_hosts_are_many_each_connection_has_the_time_for_a_handshake_and_no_more",
            "is_full",
        ),
    ],
    "test_launcher/test_rendezvous_hosts.py": [
        (
            "drops the packets of all hosts",
            "test_a_neighbour_on_another_host_neither_lists_nor_writes_the_store",
            "assert",
        ),
    ],
    "test_launcher/test_job_socket.py": [
        ("at most 128 ranges", "test_ranges_hold_every_address_and_are_exact_while_few", "assert"),
    ],
    "test_launcher/test_rendezvous.py": [
        (
            "the runner's log says so",
            "test_where_the_kernel_allows_no_filter_the_store_works_and_the_log_says_so",
            "assert",
        ),
    ],
    "test_launcher/test_doctor.py": [
        ("`holdfast doctor` warns", "test_torchs_rendezvous_is_open_only_where_a_neighbour_reaches_it", "assert"),
    ],
    "flows/test_memory_left_on_slurm.py": [
        ("goes with its user's next job", "test_the_next_runner_frees_the_memory_of_ended_jobs_alone", "assert"),
    ],
    "test_launcher/test_hostile_folder.py": [
        ("shows one line for each", "test_a_hostile_folder_costs_no_more_than_its_own_line", "splitlines"),
        ("16 MiB of another user's events", "test_the_events_of_another_user_are_read_up_to_a_size", "chown"),
        ("control sequences as text", "test_a_log_controls_no_terminal_but_may_have_colours", "x1b"),
    ],
    "test_launcher/test_dashboard_browser.py": [
        ("read by other sites", "test_a_page_of_another_origin_sees_nothing", '"no fetch;" in told'),
    ],
    "test_launcher/test_screens.py": [
        (
            "believes a folder only of its owner's job",
            "test_top_for_all_users_has_the_jobs_of_slurms_queue",
            "another user's job in this one's name",
        ),
    ],
    "test_launcher/test_dashboard.py": [
        ("without the secret in its address", "test_without_the_secret_there_is_nothing", "404"),
        (
            "no name but that of the loopback address",
            "test_a_name_of_another_site_that_resolves_to_this_machine_gets_nothing",
            "Host=host",
        ),
        ("another site's", "test_a_page_of_another_site_or_port_gets_nothing", "Sec_Fetch_Site"),
        ("cannot be framed", "test_no_answer_may_be_read_framed_or_kept_elsewhere", "x-frame-options"),
        ("change nothing", "test_nothing_can_be_changed_through_it", "501"),
    ],
    "test_launcher/test_report.py": [
        ("never markup", "test_text_of_others_is_shown_and_never_run", "HOSTILE"),
        ("or formulas", "test_csv_has_every_table_and_no_formulas", "'=HYPERLINK"),
        ("loads nothing", "test_the_report_needs_no_network_and_runs_nothing", "script"),
        ("Values that sound like secrets", "test_the_settings_in_a_report_have_no_secrets", "S3CRET"),
    ],
    "test_launcher/test_observer.py": [
        ("URL of a webhook", "test_a_notice_that_cannot_be_delivered_is_logged_without_the_secret", "S3CRET"),
        ("URL of a webhook", "test_no_server_and_no_url_are_said_without_the_secret", "assert"),
    ],
}


def statements() -> Iterator[str]:
    """The page's list items, numbered items, rows of tables and paragraphs, each in one line."""
    _, _, body = PAGE.partition("\n## ")
    for block in re.split(r"\n\n|\n(?=- |\d\. |\| )", body):
        text = " ".join(block.split())
        is_heading = re.match(r"(## )?[^.|]{3,60}$", text) or text.startswith(("|---", "| what"))
        if text and not is_heading and not text.endswith(":") and not text.startswith("Rules of nftables"):
            yield text


def function(file: str, name: str) -> str:
    """The text of a test, with its decorators."""
    text = (TESTS / file).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise AssertionError(f"{file} has no {name}")


def test_every_statement_names_its_test_or_that_there_is_none() -> None:
    found = list(statements())
    assert len(found) >= 35
    assert not [text for text in found if not _FILE.search(text) and "no test" not in text]


def test_every_file_that_a_statement_names_has_a_test_that_shows_it() -> None:
    """And the other way round: each proof belongs to words of a statement that names its file."""
    named = {(text, file) for text in statements() for file in _FILE.findall(text)}
    proofs = [(words, file) for file, rows in PROOFS.items() for words, _, _ in rows]
    assert not [pair for pair in named if not any(words in pair[0] and file == pair[1] for words, file in proofs)]
    assert not [proof for proof in proofs if not any(proof[0] in text and proof[1] == file for text, file in named)]


@pytest.mark.parametrize(
    ("file", "name", "does"), [(file, *row[1:]) for file, rows in PROOFS.items() for row in rows], ids=str
)
def test_the_named_test_does_what_the_page_says(file: str, name: str, does: str) -> None:
    text = function(file, name)
    assert does in text
    assert re.search(r"assert|raises|refused\(|check_private\(", text)
    assert "xfail" not in text
