"""Building a draft zoo: prompts, the target's own text, distilled drafts."""
