// One answer: its steps and times as they arrive, and the figures that follow from them.

export class Answer {
  /** `now` returns seconds; the answer's time begins here. */
  constructor(now = () => performance.now() / 1000) {
    this.steps = [];
    this.tokenIds = [];
    this.finishReason = null;
    this.usage = null;
    this._now = now;
    this._began = now();
    this._first = this._last = null;
  }

  /** Take a chunk of the stream; return the step that it adds, or null. */
  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const [choice] = chunk.choices;
    if (choice?.finish_reason) this.finishReason = choice.finish_reason;
    const report = chunk.speculation;
    if (!report) return null;
    this._last = this._now();
    this._first ??= this._last;
    const step = { ...report, number: this.steps.length + 1, kinds: kindsOf(report) };
    this.steps.push(step);
    this.tokenIds.push(...report.tokens.map((token) => token.id));
    return step;
  }

  get secondsToFirstToken() {
    return this._first === null ? null : this._first - this._began;
  }

  /** From the request to the latest token. */
  get seconds() {
    return this._last === null ? 0 : this._last - this._began;
  }

  get tokensPerSecond() {
    return this.seconds ? this.tokenIds.length / this.seconds : 0;
  }

  /** Committed tokens per pass of the target. */
  get acceptanceLength() {
    return this.steps.length ? this.tokenIds.length / this.steps.length : 0;
  }
}

/** Return the kind of each token of a step: accepted, correction, bonus or plain. */
function kindsOf({ tokens, num_accepted_tokens: numAccepted, tree }) {
  return tokens.map((_, place) => {
    if (place < numAccepted) return "accepted";
    if (!tree) return "plain";
    const last = tree.accepted.at(-1) ?? -1;
    return tree.parents.includes(last) ? "correction" : "bonus";
  });
}

/** Return whether two answers have the same token ids. */
export function sameTokens(one, other) {
  return one.tokenIds.length === other.tokenIds.length
    && one.tokenIds.every((id, place) => id === other.tokenIds[place]);
}
