import{a,b,c}from"./chunk-GEZGWCBH.js";import"./chunk-QIJTRPZA.js";import"./chunk-SVPYO5R6.js";import"./chunk-CA5Q3VUZ.js";import"./chunk-DCWNDB7N.js";export{c as Heads,b as Train,a as joined};
