// Tokens → text, as they come. What a later token could still change is held back: the bytes of an unfinished
// character, and bytes that may be the beginning of a stop string. What is given out is never taken back, and all of it
// together is the text of all tokens at once.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/core.h"
#include "runtime/core/vocab_bytes.h"

namespace precast {

struct DetokenizerOptions {
  std::vector<std::string> stop;  // UTF-8, none empty
  bool include_stop = false;      // a stop string goes out; what comes behind it does not
  int32_t min_tokens = 0;         // a stop string counts when it ends in a later token
  bool skip_special_tokens = true;
  bool at_start = false;  // nothing with text comes before the first token
};

// Stop strings are found on bytes, as if bytes came one by one: the one that ends first wins, of those the longest.
class Detokenizer {
 public:
  // Without `vocab` every token has no text.
  Detokenizer(std::shared_ptr<const VocabBytes> vocab, DetokenizerOptions options);

  // Takes the next token. Returns the index of the stop string that it completes, or −1. After a stop nothing may
  // follow.
  int push(TokenId token);

  // Appends to `text` what can be given out, all of it when `final`. Returns how many tokens, in the order of push, go
  // out with it: those of which some text has gone out and those without text before them. Tokens that begin where a
  // found stop string has cut the text, or behind it, never go out.
  size_t release(bool final, std::string& text);

 private:
  int find_stop(size_t from);
  size_t held_back() const;
  size_t tokens_until(size_t end) const;

  std::shared_ptr<const VocabBytes> vocab_;
  DetokenizerOptions options_;
  std::string bytes_;               // of all tokens
  std::vector<size_t> ends_;        // where each token's bytes end
  size_t given_ = 0;                // bytes whose text has gone out
  size_t released_ = 0;             // tokens that have gone out
  size_t end_ = std::string::npos;  // where a found stop string cuts the text
};

}  // namespace precast
