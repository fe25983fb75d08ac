"""What a fault cost is read off the times of tokens."""

from benchmarks.recoveries import Recovery, Tokens


def test_a_wait_of_one_answer_is_not_hidden_by_tokens_of_another() -> None:
    tokens, recovery = Tokens(), Recovery("kill coordinator", began=10.0, ended=12.0)
    tokens.asked()[:] = [8.0, 9.0, 11.5, 16.0]
    tokens.asked()[:] = [9.5, *(10 + 0.5 * number for number in range(20))]
    assert tokens.longest_wait(recovery) == 4.5, "it began before the recovery had ended"
    assert tokens.longest_silence(recovery) == 0.5
