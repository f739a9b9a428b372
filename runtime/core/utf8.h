// UTF-8, decoded as Python does with errors="replace": each maximal ill-formed part becomes one U+FFFD (Unicode 15,
// §3.9, "U+FFFD Substitution of Maximal Subparts").
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace precast {

// Appends the text of `bytes` to `text` and returns how many bytes were used. A character that `bytes` ends inside of
// is left (not used) unless `final`, when it becomes one U+FFFD. Cutting anywhere gives the same text in the end.
size_t decode_utf8(std::string_view bytes, bool final, std::string& text);

bool is_utf8(std::string_view bytes);

}  // namespace precast
