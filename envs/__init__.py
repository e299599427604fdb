"""The world: request streams, traces, replay, Gymnasium environments and the draft zoo builder."""
