// Work in pieces, handed out one at a time to torch's own threads.
//
// A thread takes the next piece when it has done its last, so that one whose core is busy elsewhere holds nobody up.
// Which thread computes a piece changes no bit of it.

#pragma once

typedef void piece_fn(const void *task, long piece);

void run_pieces(piece_fn *compute, const void *task, long pieces, int threads);

// Runs `program` on one thread while the others wait, without sleeping, for the pieces that it hands out: between two
// products of a token there is no time to wake them.
void run_team(void (*program)(void *), void *data, int threads);
