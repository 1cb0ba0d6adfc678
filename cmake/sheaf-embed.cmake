# Makes a C file of a text: cmake -D IN=page.html -D OUT=page.c -D NAME=page_text -P sheaf-embed.cmake
# defines `const unsigned char NAME[]`, with a zero behind it.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "/* made of ${IN} */\nextern const unsigned char ${NAME}[];\nconst unsigned char ${NAME}[] = {\n${bytes}0};\n")
