// Whether a sanitizer is compiled in, which maps memory and counts what is allocated by itself:
// NNSTRETCH_SANITIZED is 1 or 0.
#pragma once

#if defined(__has_feature)  // Of clang; g++ defines what follows.
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NNSTRETCH_SANITIZED 1
#endif
#endif
#if !defined(NNSTRETCH_SANITIZED)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NNSTRETCH_SANITIZED 1
#else
#define NNSTRETCH_SANITIZED 0
#endif
#endif
